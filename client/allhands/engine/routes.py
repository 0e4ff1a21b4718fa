"""Routes of a collective call: tables of all routes, with their conditions.

Before all of them come the plain functions of `api` and `c10d`, and the awaited ones: a call with
one array a side, waited for or not, goes straight to the group's communicator, or to its links, and
needs none of these unless that declines.

A checked call begins on its caller's thread, by the row of `list_starts`; its turn on the loop goes
by `choose_route`. All ranks come to choices that fit together: communicators, hosts and phases are
agreed on by a group's ranks.
"""

from collections.abc import Mapping
from enum import Enum

import numpy as np

from allhands.collectives.composite_call import CompositeState
from allhands.collectives.reduction import OPS, ReduceOp
from allhands.engine.operation import Operation


class Caller(Enum):
    """What the thread that begins a call does then."""

    BLOCKS = "blocks"
    """It waits for the end of the call."""
    AWAITS = "awaits"
    """Its event loop goes on until the call has ended."""
    GOES_ON = "goes on"
    """Anything else; the call may be waited for later."""


class Route(Enum):
    """Ways of a call, each with its condition and the thread that runs it."""

    INLINE = "inline"
    """Waited for, over shared memory, next in turn: the C core, on the caller's thread."""
    LENT_LOOP = "lent loop"
    """Over links, small (`engine/inline_limits.py`), next in turn: the caller's thread, which holds
    the event loop; a call that does not end within moments goes on there, as LINKS. So do the steps
    of composite calls."""
    COMM_QUEUE = "communicator's queue"
    """Over shared memory, only calls of this route ahead: the thread that waits, or one of those
    for callbacks. A small call that is next in turn is published at once. So are composite calls
    that the core makes as one."""
    PERSISTENT = "persistent"
    """An `all_reduce_init` of an ndarray and an operation of the core: at each start published
    likewise, by the C core itself; submitted as a new call where that is not possible."""
    QUEUE = "queue"
    """Any call: the group's queue on the event loop."""
    COORDINATOR = "coordinator"
    """A monitored barrier: the coordinator counts the arrivals. Nothing else is moved."""
    SHARED_MEMORY = "shared memory"
    """The ranks share memory: the C core carries the call out, on the group's job thread."""
    LINKS = "links"
    """Schedules over the mesh, on the loop; of small calls, where a host has several ranks, those
    of one rank a host, which the others meet in memory."""
    HOSTS = "hosts"
    """Phases: within each host over shared memory, between hosts over links."""
    SECOND_COMM = "second communicator"
    """Later steps of a composite call, where the ranks share memory and results are not compared:
    the C core, on the group's job thread."""


_STARTS: Mapping[tuple[Caller, bool], tuple[Route, ...]] = {
    # (the caller, whether the group has a communicator)
    (Caller.BLOCKS, True): (Route.INLINE, Route.COMM_QUEUE, Route.QUEUE),
    (Caller.BLOCKS, False): (Route.LENT_LOOP, Route.QUEUE),
    (Caller.AWAITS, True): (Route.COMM_QUEUE, Route.QUEUE),
    (Caller.AWAITS, False): (Route.LENT_LOOP, Route.QUEUE),
    (Caller.GOES_ON, True): (Route.COMM_QUEUE, Route.QUEUE),
    (Caller.GOES_ON, False): (Route.LENT_LOOP, Route.QUEUE),
}


def list_starts(caller: Caller, *, has_comm: bool) -> tuple[Route, ...]:
    """Return the routes of a call that begins, in the order of trying; QUEUE declines none."""
    return _STARTS[caller, has_comm]


def choose_persistent(x: object, op: ReduceOp, *, has_core: bool) -> Route | None:
    """Choose the route of a persistent all_reduce; None: every start submits a new call."""
    return Route.PERSISTENT if has_core and type(x) is np.ndarray and op in OPS else None


def choose_route(operation: Operation, *, has_comm: bool, has_phases: bool) -> Route:
    """Choose the route of the next queued call.

    A composite call takes the route of its first step.
    """
    if operation.monitored_barrier is not None:
        return Route.COORDINATOR
    if has_comm:
        return Route.SHARED_MEMORY
    return Route.HOSTS if has_phases else Route.LINKS


def choose_composite_route(
    state: CompositeState, *, has_comm: bool, verifies: bool
) -> Route | None:
    """Choose the route of a queued composite call as one call; None: it goes step by step."""
    as_one = has_comm and not verifies and state.core_call is not None
    return Route.SHARED_MEMORY if as_one else None


def choose_step_route(*, has_comm: bool, verifies: bool) -> Route:
    """Choose the route of the later steps of a group's composite calls."""
    return Route.SECOND_COMM if has_comm and not verifies else Route.LINKS
