"""Timeout, ranks and calling threads of a process group, in c10d's forms."""

from datetime import timedelta

import numpy as np
import pytest

import allhands as ah
from allhands import c10d
from allhands.testing import on_threads
from support.arrays.c10d_results import SIZE, equal, given, with_options


@on_threads(2)
def test_p004_the_default_timeout_is_set_by_a_process_group() -> None:
    pg = ah.process_group(ah.new_group([0, 1], timeout=50))
    assert pg.options._timeout == timedelta(seconds=50)
    pg._set_default_timeout(timedelta(seconds=23))
    assert pg.options._timeout == timedelta(seconds=23)
    assert pg.group.timeout == 23
    before = pg._get_sequence_number_for_group()
    pg.barrier().wait(20)
    assert pg._get_sequence_number_for_group() == before + 1


@on_threads(SIZE)
def test_p043_calls_on_the_callers_thread_give_the_same(rank: int) -> None:
    pg = ah.process_group()
    made, submitter = [], pg.group.here.submitter
    start = submitter.start
    submitter.start = lambda call, *more: made.append(call.request.kind) or start(call, *more)
    equal(given(pg.allreduce(np.array([rank]))), [np.array([6])])
    assert made == []
    for at in range(20):
        opts = with_options(c10d.AllreduceOptions, asyncOp=False, timeout=20, label="a step")
        work = pg.allreduce([np.array([rank])], opts)
        assert work.label == "a step"
        assert made == ["all_reduce"] * (at + 1)
        equal(given(work), [np.array([6])])
        opts = with_options(c10d.AllgatherOptions, asyncOp=False)
        outputs = [[np.zeros(1, np.int64) for _ in range(2 * SIZE)] for _ in range(2)]
        found = given(pg.allgather(outputs, [np.array([rank]), np.array([-rank])], opts))
        assert np.ravel(found).tolist() == [0, 0, 1, -1, 2, -2, 3, -3] * 2


@on_threads(SIZE)
def test_p048_a_process_group_of_groups_that_take_turns(rank: int) -> None:
    groups = [ah.new_group(range(SIZE)) for _ in range(2)]
    pg = ah.process_group(ah.round_robin(groups))
    xs = [np.full(3, at + rank) for at in range(10)]
    for x in xs:
        pg.allreduce([x])  # nobody keeps the work
    pg.barrier().wait(20)
    equal(xs, [np.full(3, SIZE * at + 6) for at in range(10)])
    found = given(pg.allreduce([np.array([rank]), np.array([1])]))
    equal(found, [np.array([10]), np.array([10])])
    assert sum(group.sequence for group in groups) == 10 + 2 + 1  # all of them have the barrier


@on_threads(2)
def test_p017_a_process_group_of_some_ranks_counts_from_0() -> None:
    backwards = ah.new_group([1, 0])
    pg = ah.process_group(backwards)
    assert (pg.rank(), pg.size(), pg.group_name) == (1 - ah.get_rank(), 2, backwards.name)
    x = np.array([ah.get_rank()])
    pg.broadcast(x, root=0).wait(20)
    assert x == 1


@on_threads(2)
def test_p106_a_process_group_is_of_ranks_that_are_in_it(rank: int) -> None:
    group = ah.new_group([0])
    if rank == 0:
        assert ah.process_group(group).size() == 1
    else:
        with pytest.raises(ValueError, match="does not belong to group"):
            ah.process_group(group)
    assert ah.process_group().name() == "allhands"
    with pytest.raises(TypeError, match="opts must be BroadcastOptions, not GatherOptions"):
        ah.process_group().broadcast([np.zeros(1)], c10d.GatherOptions())  # type: ignore[arg-type]
