"""Routes of a message: tables of all routes, with their conditions.

Before all of them come the plain `send` and `recv`: with one array and a rank of the world they go
straight to the group's `ShmP2P`, or over links to its `DirectMessages`, if no earlier message is on
its way to the loop, and need none of these unless that declines. A batch is no route of its own:
each of its messages takes one. No message goes by way of the coordinator.

A checked message begins on its caller's thread, by the rows of `list_message_starts`; on the loop
it goes on by `choose_message_route`. Both ends come to the same: a group's ranks agree on whether
they share memory. There the core chooses for each message between eager and rendezvous, and how
data is moved then (`native/p2p/start.c`); `Work.explain` tells.
"""

from collections.abc import Mapping
from enum import Enum


class MessageRoute(Enum):
    """Ways of a message, each with its condition and the thread that runs it."""

    EAGER = "eager"
    """A send that is small and within the credit: copied at once, on the caller's thread;
    over links if none before it waits there. It has ended when its work is made."""
    SHARED_MEMORY = "shared memory"
    """The ranks share memory, and no earlier message is on its way to the loop: the thread that
    waits, or the group's thread for messages."""
    LENT_LOOP = "lent loop"
    """A receive over links of what goes unasked, with no earlier message on its way to the loop:
    posted by the caller's thread, which holds the loop. Who waits for it reads the links."""
    QUEUE = "queue"
    """Any message: the event loop, in the order in which messages were begun."""
    HELD = "held"
    """It is not known yet whether the ranks share memory, or an earlier message is held: on the
    loop, until it is known."""
    LINKS = "links"
    """The ranks share no memory: the mesh, on the loop, whose outbox chooses between eager and
    rendezvous (`transport/outbox.py`)."""


_STARTS: Mapping[tuple[bool, bool], tuple[MessageRoute, ...]] = {
    # (it is a send, it has a work)
    (True, False): (MessageRoute.EAGER,),
    (False, False): (),
    (True, True): (MessageRoute.SHARED_MEMORY, MessageRoute.QUEUE),
    (False, True): (MessageRoute.SHARED_MEMORY, MessageRoute.LENT_LOOP, MessageRoute.QUEUE),
}


def list_message_starts(*, sends: bool, has_work: bool) -> tuple[MessageRoute, ...]:
    """Return the routes of a message that begins, in the order of trying.

    A message gets a work if it has not ended by the routes without; then QUEUE declines none.
    """
    return _STARTS[sends, has_work]


def choose_message_route(*, is_undecided: bool, has_failed: bool, has_p2p: bool) -> MessageRoute:
    """Choose the route of a message on the loop.

    SHARED_MEMORY declines while the group is closed; then it is LINKS after all, which raises.

    Args:
        is_undecided: whether shared memory is yet to be agreed on, or an earlier message is held.
        has_failed: whether the group has failed: then nothing waits any more.
        has_p2p: whether the group has a `ShmP2P`.
    """
    if is_undecided and not has_failed:
        return MessageRoute.HELD
    return MessageRoute.SHARED_MEMORY if has_p2p else MessageRoute.LINKS
