"""Threads of one rank on a shared group: ordered by labels, else refused on overlap."""

from typing import Any

import pytest

from programs import threads_of_a_rank
from support.ranks.processes import Job, Process

BACKENDS = pytest.mark.parametrize("backend", ["auto", "socket"])


def told(ranks: list[Process], what: str) -> list[dict[str, Any]]:
    found = [rank.expect(what) for rank in ranks]
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)
    return found


def raced(ranks: list[Process]) -> list[dict[str, Any]]:
    for rank in ranks:
        rank.expect("ready")
    for rank in ranks:
        rank.say()
    found = [rank.expect("raced") for rank in ranks]
    for rank in ranks:
        rank.say()
    assert [rank.ended() for rank in ranks] == [0] * len(ranks)
    return found


@BACKENDS
@pytest.mark.parametrize("size", [2, 4])
def test_threads_with_labels_get_their_own_numbers_or_a_table(job: Job, size: int) -> None:
    for one in raced(job(size, threads_of_a_rank.race, True)):
        assert one["wrong"] == []
        assert one["right"] + one["refused"] == 2000
        for error in one["said"]:
            assert "labelled 'thread 0'" in error
            assert "labelled 'thread 1'" in error


@BACKENDS
@pytest.mark.parametrize("size", [2, 4])
def test_threads_without_labels_end_the_group_with_both_named(job: Job, size: int) -> None:
    for one in raced(job(size, threads_of_a_rank.race, False)):
        # Calls of two threads that do not overlap on any rank are like one thread's: before the
        # first overlap a pair of them may meet another's. Without the rule most of them did.
        assert len(one["wrong"]) <= 2
        assert one["right"] + one["refused"] + len(one["wrong"]) == 2000
        (error,) = one["said"]
        assert "two threads called at the same time: thread 'user " in error
        assert "new_group" in error


@BACKENDS
@pytest.mark.parametrize("other", threads_of_a_rank.CALLS)
def test_a_call_beside_one_that_another_thread_is_in_is_refused(job: Job, other: str) -> None:
    ranks = job(2, threads_of_a_rank.call_beside_another, other)
    refused = ranks[0].expect("other")
    assert refused["error"] == "GroupAborted", refused
    assert "thread 'MainThread' was in all_reduce #2" in refused["text"]
    assert "when thread 'other' called" in refused["text"]
    ranks[1].say()
    for rank in ranks:
        one = rank.expect("said")
        # All that it needs of the other rank may have come before the end of the group did, and it
        # may hear of that end before it returns: its outputs are undefined then, and it says so.
        assert (one["error"], one["x"]) in (
            ("GroupAborted", [1.0] * 3),
            ("GroupAborted", [2.0] * 3),
            (None, [2.0] * 3),
        ), one
        if one["error"] is not None and one["x"] == [2.0] * 3:
            assert "outputs are undefined" in one["text"], one
    for rank in ranks:
        one = rank.expect("next")
        assert one["error"] == "GroupAborted", one
        assert "two threads called at the same time" in one["text"]
    assert [one["y"] for one in told(ranks, "after")] == [[2.0, 2.0, 2.0]] * 2


@BACKENDS
def test_threads_may_call_in_turn_and_while_others_wait_for_works(job: Job) -> None:
    for one in told(job(3, threads_of_a_rank.call_in_turn), "done"):
        assert one["right"] == [True] * 222


@BACKENDS
def test_tasks_call_in_the_order_in_which_they_begin(job: Job) -> None:
    for one in told(job(2, threads_of_a_rank.call_from_tasks), "done"):
        assert one["right"] == [True] * 100
