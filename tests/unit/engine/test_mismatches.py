"""Mismatches: unequal calls of ranks, and the table on every rank."""

from collections.abc import Callable

import numpy as np
import pytest

from allhands.collectives.reduction import ReduceOp
from allhands.engine import watchdog
from allhands.engine.failures import tracker
from allhands.engine.work.work import Work
from allhands.errors import CollectiveMismatch
from allhands.group.group import Group
from allhands.testing.inproc_world import InprocWorld, inproc_world, wait_outcomes, wait_results
from support.arrays.collective_cases import called
from support.ranks.inproc_calls import assert_usable, ones

pytestmark = pytest.mark.usefixtures("miniature")

Calls = tuple[Callable[[Group], Work], Callable[[Group], Work], str, str]
"""What the others call, what the odd one calls, and how the table shows the two."""

MISMATCHES: dict[str, Calls] = {
    "size": (
        lambda group: group.all_reduce(ones(5)),
        lambda group: group.all_reduce(ones(4)),
        "all_reduce(float64[5], SUM)",
        "all_reduce(float64[4], SUM)",
    ),
    "large size": (
        lambda group: group.all_reduce(ones(150)),
        lambda group: group.all_reduce(ones(149)),
        "all_reduce(float64[150], SUM)",
        "all_reduce(float64[149], SUM)",
    ),
    "small and large": (
        lambda group: group.all_reduce(ones(1)),
        lambda group: group.all_reduce(ones(150)),
        "all_reduce(float64[1], SUM)",
        "all_reduce(float64[150], SUM)",
    ),
    "dtype of one width": (
        lambda group: group.all_reduce(ones(4)),
        lambda group: group.all_reduce(ones(4, "int64")),
        "all_reduce(float64[4], SUM)",
        "all_reduce(int64[4], SUM)",
    ),
    "large dtype of one width": (
        lambda group: group.all_reduce(ones(150)),
        lambda group: group.all_reduce(ones(150, "int64")),
        "all_reduce(float64[150], SUM)",
        "all_reduce(int64[150], SUM)",
    ),
    "reduce op": (
        lambda group: group.all_reduce(ones(4)),
        lambda group: group.all_reduce(ones(4), ReduceOp.MAX),
        "all_reduce(float64[4], SUM)",
        "all_reduce(float64[4], MAX)",
    ),
    "operation": (
        lambda group: group.all_gather_into_tensor(ones(12), ones(4)),
        lambda group: group.all_reduce(ones(4)),
        "all_gather_into_tensor(float64[4])",
        "all_reduce(float64[4], SUM)",
    ),
    "barrier": (
        lambda group: group.barrier(),
        lambda group: group.all_reduce(ones(0)),
        "barrier()",
        "all_reduce(float64[0], SUM)",
    ),
    "large operation": (
        lambda group: group.all_gather_into_tensor(ones(450), ones(150)),
        lambda group: group.reduce_scatter_tensor(ones(150), ones(450)),
        "all_gather_into_tensor(float64[150])",
        "reduce_scatter_tensor(float64[150], SUM)",
    ),
}


@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize("kind", MISMATCHES)
async def test_a_mismatch_gives_every_rank_the_same_table(
    three: InprocWorld, kind: str, odd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker, "_MISMATCH_SECONDS", 20.0)  # however busy the host is
    usual, unusual, usual_row, unusual_row = MISMATCHES[kind]
    table = {rank: unusual_row if rank == odd else usual_row for rank in range(3)}
    ended = await wait_outcomes(
        [unusual(group) if group.rank == odd else usual(group) for group in three.groups]
    )
    for rank, error in enumerate(ended):
        assert isinstance(error, CollectiveMismatch), ended
        assert called(error) == table
        assert f"rank {rank} (this one): {table[rank]} at test_mismatches.py" in str(error)
        assert "#1 of group 'world'" in str(error)
    await assert_usable(three)


async def test_a_mismatch_leaves_both_of_two_arrays_as_they_were() -> None:
    for length in (3, 150):
        async with inproc_world(2) as world:
            xs = [np.arange(length + rank) for rank in range(2)]
            ended = await wait_outcomes(group.all_reduce(xs[group.rank]) for group in world.groups)
            assert all(isinstance(error, CollectiveMismatch) for error in ended)
            for rank, x in enumerate(xs):
                np.testing.assert_array_equal(x, np.arange(length + rank))


async def test_uneven_splits_that_do_not_fit_are_a_mismatch_everywhere(
    three: InprocWorld,
) -> None:
    gives = [[1, 2, 3], [1, 1, 1], [1, 1, 1]]  # rank 0 gives 2 rows to rank 1, which expects 1
    expects = [[1, 1, 1], [1, 1, 1], [3, 1, 1]]
    for width in (1, 100):
        outputs = [np.zeros((sum(rows), width)) for rows in expects]
        ended = await wait_outcomes(
            group.all_to_all_single(
                outputs[group.rank],
                np.ones((sum(gives[group.rank]), width)),
                expects[group.rank],
                gives[group.rank],
            )
            for group in three.groups
        )
        for error in ended:
            assert isinstance(error, CollectiveMismatch)
            assert f"gives {[width, 2 * width, 3 * width]}" in error.table[0]
            assert set(error.table) == {0, 1, 2}
            assert error.table == ended[0].table
        assert not any(output.any() for output in outputs)
        await assert_usable(three)


@pytest.mark.parametrize("length", [1, 150])
async def test_uneven_splits_of_two_ranks_that_do_not_fit_touch_neither(length: int) -> None:
    async with inproc_world(2) as world:
        gives = [[1, 2 * length], [length, 1]]  # rank 1 expects half of that; rank 0 what comes
        expects = [[1, length], [length, 1]]
        outputs = [np.zeros(sum(counts)) for counts in expects]
        ended = await wait_outcomes(
            group.all_to_all_single(
                outputs[group.rank],
                ones(sum(gives[group.rank])),
                expects[group.rank],
                gives[group.rank],
            )
            for group in world.groups
        )
        assert [type(error) for error in ended] == [CollectiveMismatch] * 2
        assert not any(output.any() for output in outputs)
        await assert_usable(world)


Rooted = Callable[[Group, int, int], Work]
ROOTED: dict[str, Rooted] = {
    "reduce": lambda group, length, root: group.reduce(ones(length), root),
    "gather": lambda group, length, root: group.gather(
        ones(length), [ones(length) for _ in range(3)] if group.rank == root else None, root
    ),
}


@pytest.mark.parametrize("length", [1, 150])
@pytest.mark.parametrize("operation", ROOTED)
@pytest.mark.parametrize("odd", [0, 1, 2])
async def test_ranks_that_wait_for_another_root_learn_it_long_before_the_deadline(
    three: InprocWorld, monkeypatch: pytest.MonkeyPatch, operation: str, length: int, odd: int
) -> None:
    """The two roots wait, and no data need be sent between the two."""
    monkeypatch.setattr(watchdog, "ASK_AFTER", 0.01)
    roots = [odd if rank == odd else (odd + 1) % 3 for rank in range(3)]
    ended = await wait_outcomes(
        ROOTED[operation](group, length, roots[group.rank]) for group in three.groups
    )
    table = {rank: f"root {root})" for rank, root in enumerate(roots)}
    for rank in {*roots}:
        error = ended[rank]
        assert isinstance(error, CollectiveMismatch), ended
        assert {at: call[-7:] for at, call in called(error).items()} == table
    await assert_usable(three)


async def test_two_ranks_that_wait_for_each_other_in_unlike_calls_learn_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watchdog, "ASK_AFTER", 0.01)
    async with inproc_world(2) as world:
        first, second = world.groups
        x = np.arange(3)
        ended = await wait_outcomes([first.broadcast(x, 1), second.reduce(ones(3), 1)])
        assert [type(error) for error in ended] == [CollectiveMismatch] * 2
        np.testing.assert_array_equal(x, np.arange(3))
        await assert_usable(world)


async def test_a_rank_that_was_done_answers_who_waits_in_another_call(
    three: InprocWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "ASK_AFTER", 0.01)
    await three.call_on_all(lambda group: group.reduce(ones(2), 1))
    await wait_results([three.groups[0].reduce(ones(2), 1)])  # now it waits for nobody
    ended = await wait_outcomes(
        [three.groups[1].broadcast(ones(2), 0), three.groups[2].broadcast(ones(2), 0)]
    )
    for error in ended:
        assert isinstance(error, CollectiveMismatch)
        assert called(error)[0] == "reduce(float64[2], SUM, root 1)"
    await assert_usable(three)


async def test_a_rank_that_comes_late_with_another_call_gets_the_table_too(
    three: InprocWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker, "_MISMATCH_SECONDS", 0.05)
    early = [three.groups[0].all_reduce(ones(4)), three.groups[2].all_reduce(ones(5))]
    first, second = await wait_outcomes(early)
    assert isinstance(first, CollectiveMismatch)
    assert isinstance(second, CollectiveMismatch)
    assert first.table == second.table
    assert set(first.table) == {0, 2}
    (late,) = await wait_outcomes([three.groups[1].all_reduce(ones(4))])
    assert isinstance(late, CollectiveMismatch)
    assert set(late.table) == {0, 1, 2}
    await assert_usable(three)


async def test_a_mismatch_that_came_after_a_rank_was_done_names_its_call_too(
    three: InprocWorld,
) -> None:
    for length in (1, 4):
        await three.call_on_all(lambda group, length=length: group.broadcast(ones(length), 0))
        done = three.groups[0].broadcast(ones(length), 0)
        await wait_results([done])  # all are known to make such calls: it need not wait for anybody
        ended = await wait_outcomes(group.all_reduce(ones(length)) for group in three.groups[1:])
        for error in ended:
            assert isinstance(error, CollectiveMismatch)
            assert called(error)[0] == f"broadcast(float64[{length}], root 0)"
        await assert_usable(three)


async def test_the_table_says_where_each_call_was_made(three: InprocWorld) -> None:
    def says(place: str) -> Callable[[int], str]:
        return lambda sequence: f"train.py:{10 * sequence} in {place}"

    for group in three.groups[:2]:
        group.submitter.engine._failures.find_call_site = says(f"step_{group.rank}")
    three.groups[2].submitter.engine._failures.find_call_site = lambda sequence: ""
    ended = await wait_outcomes(
        group.all_reduce(ones(4 + group.rank % 2)) for group in three.groups
    )
    for error in ended:
        assert isinstance(error, CollectiveMismatch)
        assert error.table == {
            0: "all_reduce(float64[4], SUM) at train.py:10 in step_0",
            1: "all_reduce(float64[5], SUM) at train.py:10 in step_1",
            2: "all_reduce(float64[4], SUM)",  # where nobody knows
        }


async def test_the_table_says_what_a_rank_does_instead(
    three: InprocWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker, "_ANSWER_DELAY", 0.01)
    monkeypatch.setattr(tracker, "_MISMATCH_SECONDS", 5.0)  # nobody waits so long
    for number, doing in enumerate(["has made none", "is outside any call since #2"], 1):
        ended = await wait_outcomes(
            group.all_reduce(ones(4 + group.rank), timeout=4) for group in three.groups[:2]
        )
        for error in ended:
            assert isinstance(error, CollectiveMismatch)
            assert error.table[2] == f"has not called it: {doing}"
            assert error.table == ended[0].table
        (late,) = await wait_outcomes([three.groups[2].all_reduce(ones(4), timeout=4)])
        assert isinstance(late, CollectiveMismatch), number
        assert called(late)[2] == "all_reduce(float64[4], SUM)"
        assert {**late.table, 2: ""} == {**ended[0].table, 2: ""}
        await three.call_on_all(lambda group: group.barrier())


async def test_a_rank_that_is_about_to_make_its_call_is_waited_for(
    three: InprocWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker, "_ANSWER_DELAY", 5.0)
    monkeypatch.setattr(tracker, "_MISMATCH_SECONDS", 5.0)
    works = [group.all_reduce(ones(4 + group.rank)) for group in three.groups[:2]]
    await three.run_until_idle()
    assert not any(work.is_completed() for work in works)
    ended = await wait_outcomes([*works, three.groups[2].all_reduce(ones(4))])
    assert [error.table for error in ended] == [ended[0].table] * 3
    assert called(ended[0])[2] == "all_reduce(float64[4], SUM)"
