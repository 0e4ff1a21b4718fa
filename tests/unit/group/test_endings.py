"""Failures of a group's calls, and the calls that still work afterwards."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import numpy as np
import pytest

from allhands.collectives.reduction import ReduceOp
from allhands.deadlines import deadline
from allhands.engine import watchdog
from allhands.engine.failures import tracker
from allhands.engine.failures.losses import FailureLog
from allhands.engine.failures.tracker import VerdictReply
from allhands.engine.work.work import Work
from allhands.errors import (
    AllhandsError,
    CollectiveMismatch,
    CollectiveTimeout,
    GroupAborted,
    PeerFailed,
)
from allhands.group.group import Group
from allhands.testing.inproc_world import (
    InprocRank,
    InprocWorld,
    inproc_world,
    wait_outcomes,
    wait_results,
)
from allhands.transport.inproc import InprocNetwork
from allhands.verdicts import AbsentRank, CallCancellation, Verdict
from support.arrays.collective_cases import called

pytestmark = pytest.mark.usefixtures("miniature")


@pytest.fixture
async def three() -> AsyncIterator[InprocWorld]:
    async with inproc_world(3) as world:
        yield world


async def assert_usable(world: InprocWorld, members: Sequence[Group] | None = None) -> None:
    """Check that the next call gives the right result on all ranks."""
    members = world.groups if members is None else members
    for length in (1, 150):
        xs = [np.arange(length) * (group.rank + 1) for group in members]
        await wait_results(group.all_reduce(x) for group, x in zip(members, xs, strict=True))
        wanted = np.arange(length) * sum(range(1, len(members) + 1))
        for x in xs:
            np.testing.assert_array_equal(x, wanted)


# ---------------------------------------------------------------- mismatch

Calls = tuple[Callable[[Group], Work], Callable[[Group], Work], str, str]
"""What the others call, what the odd one calls, and how the table shows the two."""


def ones(length: int, dtype: str = "float64") -> np.ndarray:
    return np.ones(length, dtype)


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
    three: InprocWorld, kind: str, odd: int
) -> None:
    usual, unusual, usual_row, unusual_row = MISMATCHES[kind]
    table = {rank: unusual_row if rank == odd else usual_row for rank in range(3)}
    ended = await wait_outcomes(
        [unusual(group) if group.rank == odd else usual(group) for group in three.groups]
    )
    for rank, error in enumerate(ended):
        assert isinstance(error, CollectiveMismatch), ended
        assert called(error) == table
        assert f"rank {rank} (this one): {table[rank]} at test_endings.py" in str(error)
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
    """The two roots wait, and nothing need be sent between them."""
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


# ---------------------------------------------------------------- deadline


@pytest.mark.parametrize("length", [1, 150])
async def test_an_absent_rank_ends_the_call_at_its_deadline_by_name(
    three: InprocWorld, length: int
) -> None:
    ended = await wait_outcomes(
        group.all_reduce(ones(length), timeout=0.05, label="gradients")
        for group in three.groups[:2]
    )
    missing: set[int] = set()
    for error in ended:
        assert isinstance(error, CollectiveTimeout)
        assert (error.op, error.seq, error.label) == ("all_reduce", 1, "gradients")
        assert "all_reduce #1 (gradients) of group 'world' timed out after 0.05 s" in str(error)
        missing.update(error.missing_ranks)
    assert 2 in missing
    # The absent rank comes late: what was sent for the old call is not taken for the new one.
    (late,) = await wait_outcomes(
        [three.groups[2].all_reduce(np.full(length, 7.0), timeout=0.05, label="gradients")]
    )
    assert isinstance(late, CollectiveTimeout)
    await assert_usable(three)


async def test_late_messages_of_a_call_that_is_over_are_drained(three: InprocWorld) -> None:
    for length in (1, 150):
        await wait_outcomes(
            group.all_gather_into_tensor(ones(3 * length), ones(length), timeout=0.02)
            for group in three.groups[:2]
        )
        late = three.groups[2].all_gather_into_tensor(ones(3 * length), ones(length), timeout=0.02)
        await wait_outcomes([late])
        await assert_usable(three)
    for rank in three.ranks:
        inbox = rank.mesh._inbox
        assert not inbox._early
        assert not inbox._posted
        assert not any(inbox._held_bytes.values())


async def test_the_coordinators_verdict_is_what_a_timeout_says() -> None:
    asked: list[tuple[str, int, tuple[int, ...]]] = []

    found = Verdict(
        "world", 1, "barrier", (AbsentRank(2, "busy", "so it is"),), "rank 2 is missing"
    )

    def verdict(group: str, sequence: int, waiting_on: Sequence[int]) -> Verdict:
        asked.append((group, sequence, tuple(waiting_on)))
        return found

    async with inproc_world(3, verdict=verdict) as world:
        ended = await wait_outcomes(group.barrier(timeout=0.05) for group in world.groups[:2])
        for error in ended:
            assert isinstance(error, CollectiveTimeout)
            assert error.missing_ranks == (2,)
            assert error.verdict is found
            assert "timed out after 0.05 s: rank 2 is missing" in str(error)
        assert {(group, sequence) for group, sequence, _ in asked} == {("world", 1)}


async def test_without_a_verdict_a_timeout_names_who_was_waited_for() -> None:
    async with inproc_world(3) as world:
        members = world.open_group("pair", [2, 0])
        (error,) = await wait_outcomes([members[0].barrier(timeout=0.05)])
        assert isinstance(error, CollectiveTimeout)
        assert error.missing_ranks == (0,)  # as a rank of the world
        assert "waiting for rank 0 (in process)" in str(error)


async def test_time_in_the_queue_counts(three: InprocWorld) -> None:
    first = three.groups[0].barrier(timeout=0.1)
    second = three.groups[0].barrier(timeout=0.05)
    assert [type(error) for error in await wait_outcomes([first, second])] == [
        CollectiveTimeout
    ] * 2


async def test_a_call_that_waited_long_may_still_end_well(
    three: InprocWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "ASK_AFTER", 0.01)
    early = [group.barrier(timeout=5) for group in three.groups[:2]]
    await asyncio.wait([asyncio.wrap_future(work.get_future()) for work in early], timeout=0.05)
    assert await wait_results([*early, three.groups[2].barrier()]) == [None] * 3


# ---------------------------------------------------------------- cancel


async def test_a_running_call_can_be_cancelled(three: InprocWorld) -> None:
    x = ones(150)
    work = three.groups[0].all_reduce(x)
    await three.run_until_idle()
    work.cancel()
    (error,) = await wait_outcomes([work])
    assert isinstance(error, AllhandsError)
    assert "all_reduce #1 of group 'world' was cancelled by this rank" in str(error)
    await wait_outcomes(group.all_reduce(ones(150), timeout=0.02) for group in three.groups[1:])
    np.testing.assert_array_equal(x, ones(150))  # what the others still sent did not land
    await assert_usable(three)


async def test_a_queued_call_can_be_cancelled_and_keeps_its_number(three: InprocWorld) -> None:
    group = three.groups[0]
    works = [group.barrier(), group.all_reduce(ones(3)), group.barrier()]
    works[1].cancel()
    (error,) = await wait_outcomes(works[1:2])
    assert "all_reduce #2 of group 'world' was cancelled" in str(error)
    others = [
        work
        for other in three.groups[1:]
        for work in (other.barrier(), other.all_reduce(ones(3), timeout=0.05), other.barrier())
    ]
    ended = await wait_outcomes([works[0], works[2], *others])
    assert [type(one) for one in ended] == [
        *(type(None), type(None)),
        *(type(None), GroupAborted, type(None)) * 2,
    ]
    await assert_usable(three)


async def test_cancelling_what_has_ended_changes_nothing(three: InprocWorld) -> None:
    works = [group.barrier() for group in three.groups]
    await wait_results(works)
    for work in works:
        work.cancel()
    await three.run_until_idle()
    assert all(work.is_success() for work in works)
    await assert_usable(three)


# ---------------------------------------------------------------- peers that go


async def test_a_failed_peer_ends_every_call_of_the_others_and_all_to_come(
    three: InprocWorld,
) -> None:
    works = [work for group in three.groups[:2] for work in (group.barrier(), group.barrier())]
    await three.run_until_idle()
    await three.fail(2, "died: its process went away")
    for error in await wait_outcomes([*works, three.groups[0].barrier()]):
        assert isinstance(error, PeerFailed)
        assert error.failed_ranks == (2,)
        assert "cannot end: rank 2 (in process) died: its process went away" in str(error)


async def test_groups_without_the_failed_peer_go_on(three: InprocWorld) -> None:
    pair = three.open_group("pair", [0, 1])
    await three.fail(2)
    await assert_usable(three, pair)


async def test_the_first_failure_of_a_group_is_the_one_that_counts(three: InprocWorld) -> None:
    engine = three.ranks[0].engines["world"]
    engine.fail(lambda what: GroupAborted(f"{what}: enough", by="rank 1", reason="enough"))
    await three.fail(2)
    (error,) = await wait_outcomes([three.groups[0].barrier()])
    assert isinstance(error, GroupAborted)


async def test_who_left_first_is_named_though_another_rank_died_of_it(three: InprocWorld) -> None:
    await assert_usable(three)
    stays = three.groups[0]
    await three.leave(2)
    await three.fail(1)
    works = [stays.barrier(), stays.recv(ones(3), 2)]
    for error in await wait_outcomes(works):
        assert isinstance(error, PeerFailed)
        assert error.failed_ranks == (2,)


async def test_each_caller_gets_an_error_of_its_own(three: InprocWorld) -> None:
    works = [three.groups[0].barrier() for _ in range(3)]
    await three.fail(2)
    ended = await wait_outcomes(works)
    assert len({id(error) for error in ended}) == 3
    assert [f"#{number} " in str(error) for number, error in enumerate(ended, 1)] == [True] * 3


async def test_what_a_peer_completed_before_it_left_ends_well(three: InprocWorld) -> None:
    """The leaver is done with a call as soon as its own part is done."""
    xs = [np.full(3, rank) for rank in range(3)]
    await three.call_on_all(lambda group: group.broadcast(np.full(3, 0), 0))
    leaver = three.groups[0].broadcast(xs[0], 0)
    await wait_results([leaver])
    await three.leave(0)
    await wait_results(group.broadcast(xs[group.rank], 0) for group in three.groups[1:])
    assert [x.tolist() for x in xs] == [[0] * 3] * 3


@pytest.mark.parametrize("waits", [True, False])
async def test_a_peer_that_ran_ahead_and_left_is_not_waited_for(
    three: InprocWorld, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """A rank for which such a call is new, because one failed here, wants to hear from all."""
    monkeypatch.setattr(three.ranks[1].mesh, "_answer_call", lambda *_: None)  # it leaves too soon
    await three.call_on_all(lambda group: group.reduce(ones(3), 0))
    three.groups[2].submitter.engine._link_calls.agreed_signatures.clear()
    await wait_results([three.groups[1].reduce(ones(3), 0)])
    x = ones(3)
    works = [three.groups[2].reduce(ones(3), 0)] if waits else []
    await three.leave(1)
    works += [three.groups[0].reduce(x, 0)]
    works += [] if waits else [three.groups[2].reduce(ones(3), 0)]
    await wait_results(works)
    assert x.tolist() == [3.0] * 3


async def test_calls_after_the_last_of_a_peer_that_left_fail(three: InprocWorld) -> None:
    await assert_usable(three)
    blocked = [group.barrier() for group in three.groups[1:]]
    await three.run_until_idle()
    await three.leave(0)
    for error in await wait_outcomes([*blocked, three.groups[1].barrier()]):
        assert isinstance(error, PeerFailed)
        assert error.failed_ranks == (0,)
        assert "left the job" in str(error)


async def test_the_end_of_the_world_ends_what_is_under_way() -> None:
    async with inproc_world(2) as world:
        group = world.groups[0]
        works = [group.barrier(), group.all_reduce(ones(3)), group.recv(ones(3), 1)]
    assert all(work.is_completed() for work in works)
    for work in works:
        assert "this rank has left the group" in str(work.exception())
    assert asyncio.all_tasks() == {asyncio.current_task()}


# ---------------------------------------------------------------- work


async def test_a_work_tells_how_it_stands(three: InprocWorld) -> None:
    x = ones(3)
    work = three.groups[0].all_reduce(x, label="loss")
    assert (work.operation, work.sequence, work.label) == ("all_reduce", 1, "loss")
    assert not work.is_completed()
    assert not work.is_success()
    assert work.exception() is None
    assert repr(work) == "all_reduce #1 of group 'world' (loss)"
    with pytest.raises(CollectiveTimeout, match="goes on until its own deadline"):
        work.wait(0.001)
    others = [group.all_reduce(ones(3), label="loss") for group in three.groups[1:]]
    await wait_results([work, *others])
    assert work.wait()
    assert work.is_success()
    assert work.result() is x
    with pytest.raises(ValueError, match="has received nothing"):
        work.source_rank()


async def test_a_failed_work_raises_from_wait_and_result(three: InprocWorld) -> None:
    work = three.groups[0].barrier(timeout=0.01)
    await wait_outcomes([work])
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), CollectiveTimeout)
    for ask in (work.wait, work.result):
        with pytest.raises(CollectiveTimeout, match=r"timed out after 0\.01 s"):
            ask()


# ---------------------------------------------------------------- what becomes of outputs

WRITING: dict[str, Callable[[Group, np.ndarray], Work]] = {
    "all_reduce": lambda group, x: group.all_reduce(x),
    "broadcast": lambda group, x: group.broadcast(x, 0),
    "reduce": lambda group, x: group.reduce(x, 1),
    "all_gather": lambda group, x: group.all_gather_into_tensor(x, np.ones(len(x) // 3)),
    "reduce_scatter": lambda group, x: group.reduce_scatter_tensor(x, np.ones(len(x) * 3)),
    "all_to_all": lambda group, x: group.all_to_all_single(x, np.ones(len(x))),
    "scatter": lambda group, x: group.scatter(
        x, [np.ones(len(x)) for _ in range(3)] if group.rank == 0 else None, 0
    ),
}


@pytest.mark.parametrize("length", [3, 150])
@pytest.mark.parametrize("operation", WRITING)
async def test_a_rank_that_never_comes_touches_no_output(operation: str, length: int) -> None:
    for absent in range(3):
        async with inproc_world(3) as world:
            members = [group for group in world.groups if group.rank != absent]
            xs = [np.arange(length, dtype=float) for _ in members]
            with deadline(0.05):
                works = [WRITING[operation](group, x) for group, x in zip(members, xs, strict=True)]
            ended = await wait_outcomes(works)
            for x, error in zip(xs, ended, strict=True):
                assert isinstance(error, CollectiveTimeout), (absent, ended)
                assert error.outputs_intact
                np.testing.assert_array_equal(x, np.arange(length))


@pytest.mark.parametrize("hosts", ["", "aabb", "abbb"])
async def test_an_error_says_truly_whether_outputs_were_touched(hosts: str) -> None:
    said = set()
    for turns in range(0, 120, 3):
        async with inproc_world(4, hosts=hosts) as world:
            xs = [np.ones(600) for _ in range(4)]
            works = [group.all_reduce(x) for group, x in zip(world.groups, xs, strict=True)]
            for _ in range(turns):
                await asyncio.sleep(0)
            await world.fail(3)
            for x, error in zip(xs, (await wait_outcomes(works))[:3], strict=False):
                if isinstance(error, PeerFailed):
                    said.add(error.outputs_intact)
                    state = "untouched" if error.outputs_intact else "undefined"
                    assert str(error).endswith(f"its outputs are {state}")
                    assert not error.outputs_intact or (x == 1).all()
                else:
                    assert (x == 4).all()
    assert said == {True, False}


# ---------------------------------------------------------------- given up


ELSEWHERE = Verdict(
    "world", 7, "barrier", (AbsentRank(1, "elsewhere", "is elsewhere"),), "elsewhere"
)


async def told_why(*answers: VerdictReply) -> tuple[AllhandsError, int]:
    """Return the error of a call that rank 1 gave up, and how often the coordinator was asked."""
    left = list(answers)
    me = InprocRank(InprocNetwork(), 0, lambda group, sequence, waiting_on: left.pop(0))
    doing, losses = (lambda: "is in no call"), FailureLog()
    ending = tracker.FailureTracker("world", [0, 1], 0, 1, me.mesh, me, doing, losses)
    return await ending.await_abandoned_error("barrier", 7, None, [1]), len(answers) - len(left)


@pytest.mark.parametrize("early", [None, ELSEWHERE])
async def test_why_a_call_was_given_up_may_reach_the_coordinator_after_the_question(
    early: VerdictReply,
) -> None:
    error, asked = await told_why(early, CallCancellation(1, "rank 1 (host a, pid 17)", "Ctrl-C"))
    assert isinstance(error, GroupAborted)
    assert (error.by, error.reason, asked) == ("rank 1 (host a, pid 17)", "Ctrl-C", 2)


async def test_why_a_call_was_given_up_is_asked_twice_before_it_is_taken_for_unknown() -> None:
    error, asked = await told_why(None, ELSEWHERE)
    assert isinstance(error, CollectiveTimeout)
    assert error.missing_ranks == (1,)
    assert "elsewhere" in str(error)
    assert asked == 2
    assert (await told_why(CallCancellation(1, "rank 1", "Ctrl-C"), None))[1] == 1
