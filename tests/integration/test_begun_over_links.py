"""Calls over links that are only begun, in the native core, between real processes."""

import pytest

from allhands.runtime import native_core
from programs import awaited_calls, begun_over_links
from support.ranks.processes import Job, finish

pytestmark = [
    pytest.mark.skipif(native_core.find()[0] is None, reason="there is no native core"),
    pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "tls"]),
]


@pytest.mark.parametrize("verify", [False, True], ids=["unverified", "verified"])
@pytest.mark.parametrize(("size", "seed"), [(2, 1), (3, 2), (4, 3)])
def test_begun_calls_give_the_right_values_whether_they_end_at_once_or_later(
    job: Job, size: int, seed: int, verify: bool
) -> None:
    said = finish(job(size, begun_over_links.begin_calls_of_all_kinds, seed, 300, verify))
    assert [one["wrong"] for one in said] == [[]] * size
    assert all(one["at_once"] > 3 for one in said), said
    assert all(one["handed"] > 0 for one in said), said
    assert all(5 < one["core"] < one["queued"] for one in said), said


@pytest.mark.parametrize(("size", "count", "least"), [(2, 4, 20), (3, 4, 20), (2, 100_000, 5)])
def test_awaited_calls_end_at_once_or_later(job: Job, size: int, count: int, least: int) -> None:
    """On an event loop they are of up to 1 MiB."""
    said = finish(job(size, begun_over_links.await_calls, 200, count))
    assert [one["wrong"] for one in said] == [[]] * size
    assert all(one["at_once"] > least for one in said), said
    assert all(one["handed"] > 0 for one in said), said


@pytest.mark.parametrize("size", [2, 3])
def test_awaited_calls_of_several_steps_end_at_once_or_later(job: Job, size: int) -> None:
    for said in finish(job(size, begun_over_links.await_steps, 60)):
        assert said["wrong"] == []
        assert 0 < said["queued"] < said["calls"] - 50, said


@pytest.mark.parametrize("size", [2, 3])
def test_begun_calls_of_several_steps_end_at_once_or_later(job: Job, size: int) -> None:
    for said in finish(job(size, begun_over_links.begin_steps, 60)):
        assert said["wrong"] == []
        assert said["at_once"] > 20, said


@pytest.mark.parametrize("size", [2, 3])
def test_awaited_messages_end_at_once_or_later(job: Job, size: int) -> None:
    said = finish(job(size, begun_over_links.await_messages, size, 300))
    assert [one["wrong"] for one in said] == [[]] * size
    assert all(one["at_once"] > 20 for one in said), said
    assert all(one["later"] > 0 for one in said), said


@pytest.mark.parametrize("verify", [False, True], ids=["unverified", "verified"])
@pytest.mark.parametrize("size", [2, 3])
def test_begun_messages_arrive_in_order_whether_they_leave_at_once_or_later(
    job: Job, size: int, verify: bool
) -> None:
    for said in finish(job(size, begun_over_links.begin_messages, size, 200, verify)):
        assert said["wrong"] == []
        assert 20 < said["at_once"] < said["begun"], said


def test_who_waits_needs_not_wait_until_the_loop_has_been_left_alone(job: Job) -> None:
    for said in finish(job(2, begun_over_links.wait_while_the_loop_is_left_alone, 10)):
        assert said["wrong"] == []


def test_prepared_calls_end_at_once_or_later(job: Job) -> None:
    said = finish(job(2, begun_over_links.prepare_calls, 200))
    assert [one["wrong"] for one in said] == [[]] * 2
    assert all(one["at_once"] > 20 for one in said), said
    assert all(one["handed"] > 0 for one in said), said


def test_a_thread_that_waits_at_once_for_what_it_began_is_held_for_the_next(job: Job) -> None:
    ranks = job(2, begun_over_links.wait_for_a_late_rank)
    for is_waited_for in (True, True, True, False):
        told = ranks[0].expect("begun")
        while not told["handed"]:
            ranks[1].say("come")
            told = ranks[0].expect("begun")
        assert told["soon"] == 0
        if is_waited_for:
            ranks[0].expect("waits")
        ranks[1].say("come")
    ranks[1].say("stop")
    said = finish(ranks)[0]
    assert said["soon"] == [True, False, True, False]
    assert said["held"] == [True, True, False, False]


def test_a_thread_that_waits_as_soon_as_several_are_begun_is_held_too(job: Job) -> None:
    ranks = job(2, begun_over_links.wait_for_the_first_of_several)
    ranks[0].expect("waits")
    ranks[1].say("come")
    assert finish(ranks)[0]["soon"]


def test_threads_may_begin_calls_at_once(job: Job) -> None:
    """Only threads that wait in calls at once are refused."""
    for said in finish(job(2, begun_over_links.begin_from_two_threads, 1000)):
        assert said["wrong"] == []


def test_a_begun_call_that_others_miss_names_them_when_it_is_waited_for(job: Job) -> None:
    ranks = job(3, begun_over_links.begin_without_others)
    missed = [rank.expect("missed") for rank in ranks]
    assert missed[0]["was_open"]
    assert (missed[0]["error"], missed[0]["ranks"]) == ("CollectiveTimeout", [1, 2])
    assert [one["kept"] for one in missed] == [True] * 3
    for rank in ranks:
        rank.say()
    for said in finish(ranks):
        assert (said["error"], said["y"]) == ("CollectiveTimeout", [6] * 3)


def test_begun_calls_that_differ_are_told_apart_on_every_rank(job: Job) -> None:
    for said in [rank.expect("done") for rank in job(2, begun_over_links.begin_different_calls)]:
        assert (said["error"], said["kept"]) == ("CollectiveMismatch", True)
        assert "float64[10]" in said["text"]
        assert "float64[11]" in said["text"]


def test_a_rank_killed_behind_begun_calls_is_named_in_each(job: Job) -> None:
    ranks = job(3, begun_over_links.lose_a_rank_behind_begun_calls)
    for rank in ranks[:2]:
        said = rank.expect("done")
        assert said["errors"] == ["PeerFailed"] * 2
        assert said["ranks"] == [[2]] * 2


def test_a_begun_call_that_is_cancelled_ends_on_all_ranks(job: Job) -> None:
    ranks = job(2, begun_over_links.cancel_a_begun_call)
    told = ranks[0].expect("cancelled")
    assert "was cancelled by this rank" in told["text"]
    assert told["kept"]
    ranks[1].say()
    other = ranks[1].expect("cancelled")
    if other["error"] is None:  # who finds all that it needs may end it well: see `Work.cancel`
        assert other["x"] == [5.0] * 5
    else:
        assert other["error"] == "GroupAborted"
        assert other["x"] == [3.0] * 5 or not other["intact"]
    assert [said["y"] for said in finish(ranks)] == [[2.0] * 3] * 2


def test_begun_calls_are_recorded_once_wherever_they_end(job: Job) -> None:
    for said in finish(job(2, begun_over_links.record_begun_calls)):
        assert said["numbers"] == [1, 2, 3, 4]
        assert said["operations"] == ["barrier"] + ["broadcast"] * 3
        assert said["outcomes"] == ["ok"] * 4
        assert said["functions"] == ["record_begun_calls"] * 4
        assert said["explained"] == [True] * 4
        assert said["futures"] == [True] * 4


def test_calls_awaited_without_a_pause_leave_turns_to_other_tasks(job: Job) -> None:
    for said in finish(job(2, awaited_calls.call_without_a_pause, False, "socket")):
        assert said["turns"] >= awaited_calls.CALLS // 16


def test_a_loop_goes_on_while_another_rank_is_late(job: Job) -> None:
    ranks = job(2, awaited_calls.await_a_late_rank, "socket")
    ranks[0].expect("goes on")
    ranks[1].say()
    ranks[1].expect("goes on")
    finish(ranks)
