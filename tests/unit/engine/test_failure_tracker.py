"""Failure tracker: deadlines, cancellation, failing or leaving peers, abandoned calls."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from allhands.engine import watchdog
from allhands.engine.failures import tracker
from allhands.engine.failures.losses import FailureLog
from allhands.engine.failures.tracker import VerdictReply
from allhands.errors import AllhandsError, CollectiveTimeout, GroupAborted, PeerFailed
from allhands.testing.inproc_world import (
    InprocRank,
    InprocWorld,
    inproc_world,
    wait_outcomes,
    wait_results,
)
from allhands.transport.inproc import InprocNetwork
from allhands.verdicts import AbsentRank, CallCancellation, Verdict
from support.ranks.inproc_calls import assert_usable, ones

pytestmark = pytest.mark.usefixtures("miniature")


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
    """The leaver is done with a call at the end of the leaver's own part."""
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
    """A rank with a new signature, because a call failed here, wants to hear from all."""
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


# ---------------------------------------------------------------- given up


ELSEWHERE = Verdict(
    "world", 7, "barrier", (AbsentRank(1, "elsewhere", "is elsewhere"),), "elsewhere"
)


async def told_why(*answers: VerdictReply) -> tuple[AllhandsError, int]:
    """Return the error of a call given up by rank 1, and the number of coordinator requests."""
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
