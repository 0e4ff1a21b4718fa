"""Routes of a collective call: the table of all routes, with their conditions.

Chosen by the caller's thread, in `group.Group` and the functions of `api`; the first that fits:

    route          condition                                             runs on
    native inline  waited for; the group has a communicator              the caller's thread, in C
    inline         waited for; at most 64 KiB, over links; next in turn  the caller's thread,
                                                                         holding the loop
    split-phase    not waited for; small all_reduce over the             the waiting thread, or
                   communicator; next in turn                            a callback thread
    deferred       has a communicator; all calls ahead are deferred      the waiting thread, or
                                                                         a callback thread
    queued         all else                                              the loop, by `Route`

A queued call reaches its turn on the loop; `Route` is the choice made there. All ranks come to the
same choice, because each condition is agreed on by the ranks of the group.
"""

from enum import Enum

from allhands.engine.operation import Operation


class Route(Enum):
    """Ways of a call from the queue, by the first condition that holds."""

    COORDINATOR = "coordinator"
    """A monitored barrier: the coordinator counts the arrivals. Nothing else is moved."""
    SHARED_MEMORY = "shared memory"
    """The ranks share memory: the C core carries the call out, on the group's job thread."""
    LINKS = "links"
    """Schedules over the mesh; also of a call that was begun inline, and goes on on the loop."""
    HOSTS = "hosts"
    """Phases: within each host over shared memory, between hosts over links."""


def choose_route(operation: Operation, *, has_comm: bool, has_phases: bool) -> Route:
    """Choose the route of the next queued call.

    A composite call takes the route of its first step; its later steps go over a second
    communicator or, without shared memory, over links (`hosts.composite_runner`).
    """
    if operation.monitored_barrier is not None:
        return Route.COORDINATOR
    if has_comm:
        return Route.SHARED_MEMORY
    return Route.HOSTS if has_phases else Route.LINKS
