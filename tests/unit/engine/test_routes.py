"""Routes: which ways a call tries, in which order, and under which condition."""

from types import SimpleNamespace
from typing import cast

import numpy as np

from allhands.collectives import plan
from allhands.collectives.composite_call import CompositeState
from allhands.collectives.reduction import ReduceOp
from allhands.collectives.request import CollectiveRequest
from allhands.engine.operation import MonitoredBarrierCall, Operation
from allhands.engine.routes import (
    Caller,
    Route,
    choose_composite_route,
    choose_persistent,
    choose_route,
    choose_step_route,
    list_starts,
)
from allhands.engine.work.work import Work

BARRIER = MonitoredBarrierCall(names_all=False)
CHAIN = cast(CompositeState, object())


def operation() -> Operation:
    request = CollectiveRequest("barrier")
    work = Work(request.call, 1, None, "world")
    return Operation(work, request.call, request, plan.barrier, None, 1.0, 1.0)


def test_callers_that_wait_try_their_own_thread_first() -> None:
    shared = (Route.INLINE, Route.COMM_QUEUE, Route.QUEUE)
    assert list_starts(Caller.BLOCKS, has_comm=True) == shared
    assert list_starts(Caller.BLOCKS, has_comm=False) == (Route.LENT_LOOP, Route.QUEUE)


def test_callers_with_a_loop_of_their_own_try_their_thread_over_links() -> None:
    assert list_starts(Caller.AWAITS, has_comm=True) == (Route.COMM_QUEUE, Route.QUEUE)
    assert list_starts(Caller.AWAITS, has_comm=False) == (Route.LENT_LOOP, Route.QUEUE)


def test_calls_that_are_not_waited_for_try_their_thread_over_links() -> None:
    assert list_starts(Caller.GOES_ON, has_comm=True) == (Route.COMM_QUEUE, Route.QUEUE)
    assert list_starts(Caller.GOES_ON, has_comm=False) == (Route.LENT_LOOP, Route.QUEUE)


def test_a_composite_call_is_one_call_where_memory_is_shared_and_results_are_not_compared() -> None:
    one_call = cast(CompositeState, SimpleNamespace(core_call=object()))
    steps = cast(CompositeState, SimpleNamespace(core_call=None))
    expected = [
        (one_call, True, False, Route.SHARED_MEMORY),
        (one_call, True, True, None),
        (one_call, False, False, None),
        (steps, True, False, None),
    ]
    for state, has_comm, verifies, route in expected:
        assert choose_composite_route(state, has_comm=has_comm, verifies=verifies) is route


def test_a_queued_call_takes_the_shortest_way_that_its_ranks_share() -> None:
    call = operation()
    assert choose_route(call, has_comm=True, has_phases=False) is Route.SHARED_MEMORY
    assert choose_route(call, has_comm=False, has_phases=True) is Route.HOSTS
    assert choose_route(call, has_comm=False, has_phases=False) is Route.LINKS
    call.monitored_barrier = BARRIER
    assert choose_route(call, has_comm=True, has_phases=False) is Route.COORDINATOR


def test_later_steps_use_memory_unless_results_are_compared() -> None:
    assert choose_step_route(has_comm=True, verifies=False) is Route.SECOND_COMM
    assert choose_step_route(has_comm=True, verifies=True) is Route.LINKS
    assert choose_step_route(has_comm=False, verifies=False) is Route.LINKS


def test_the_core_restarts_plain_arrays_and_operations_that_it_knows() -> None:
    x = np.zeros(2)
    assert choose_persistent(x, ReduceOp.SUM, has_core=True) is Route.PERSISTENT
    assert choose_persistent(x, ReduceOp.SUM, has_core=False) is None
    assert choose_persistent(x, ReduceOp.premul_sum(2.0), has_core=True) is None
    masked = np.ma.masked_array(x)
    assert choose_persistent(masked, ReduceOp.SUM, has_core=True) is None
