"""Asynchronous calls over shared memory, and failures before their completion."""

import os
import signal

import pytest

from programs import broken_works
from support.ranks.processes import Job, Process

KINDS = pytest.mark.parametrize("kind", ["SMALL", "LARGE", "BLOCKS", "ARRAYS"])
REDUCTIONS = pytest.mark.parametrize("kind", ["SMALL", "LARGE", "BLOCKS"])


def finished(ranks: list[Process]) -> None:
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)


@KINDS
def test_the_error_of_a_call_whose_time_is_over_names_who_is_missing(job: Job, kind: str) -> None:
    ranks = job(2, broken_works.wait_past_the_deadline, kind)
    told = ranks[0].expect("failed")
    assert (told["error"], told["again"]) == ("CollectiveTimeout", "CollectiveTimeout")
    assert told["ranks"] == [1]
    assert told["seq"] == 2
    for rank in ranks:
        rank.say()
    finished(ranks)


@KINDS
def test_who_waits_hears_of_the_death_of_a_rank_and_so_do_those_behind(job: Job, kind: str) -> None:
    ranks = job(3, broken_works.wait_for_a_dead_rank, kind)
    ranks[1].expect("here")
    for rank in (ranks[0], ranks[2]):
        rank.expect("begun")
    os.kill(ranks[1].child.pid, signal.SIGKILL)
    for rank in (ranks[0], ranks[2]):
        for told in rank.expect("failed")["all"]:
            assert (told["error"], told["ranks"]) == ("PeerFailed", [1]), told
    finished([ranks[0], ranks[2]])


@KINDS
def test_calls_that_need_a_rank_that_has_left_fail_at_once(job: Job, kind: str) -> None:
    """Calls whose turn comes only after the departure was known fail too."""
    ranks = job(2, broken_works.wait_for_a_rank_that_left, kind)
    ranks[1].expect("failed")
    ranks[1].say()
    for told in ranks[0].expect("failed")["all"]:
        assert told["error"] == "PeerFailed", told
        assert told["seconds"] < 20
    ranks[0].say()
    finished(ranks)


@KINDS
@pytest.mark.parametrize("is_waited_for", [False, True])
def test_a_call_can_be_cancelled(job: Job, kind: str, is_waited_for: bool) -> None:
    ranks = job(2, broken_works.cancel_calls, kind, is_waited_for)
    told = ranks[0].expect("cancelled")["all"]
    assert len(told) == (4 if is_waited_for else 2)
    for one in told:
        assert one["error"] == "AllhandsError", one
        assert "cancelled by this rank" in one["text"]
    for rank in ranks:
        rank.say()
    # Of small ones this rank may have given its part before.
    for _ in range(2):
        told = ranks[1].expect("told")
        assert told["error"] == "GroupAborted" or kind != "LARGE", told
    for rank in ranks:
        assert rank.expect("last")["sum"] == [3.0, 3.0]
        assert rank.expect("next")["fine"]
    finished(ranks)


@KINDS
def test_who_cancels_a_call_that_has_ended_keeps_nobody_from_it(job: Job, kind: str) -> None:
    ranks = job(3, broken_works.cancel_an_ended_call, kind)
    for rank in ranks[:2]:
        rank.expect("cancelled")
    for rank in ranks:
        rank.say()
    ranks[2].expect("cancelled")
    for rank in ranks:
        told = rank.expect("next")
        assert (told["fine"], told["error"]) == (True, "None")
    finished(ranks)


@KINDS
def test_ctrl_c_ends_a_wait_and_the_others_are_told(job: Job, kind: str) -> None:
    ranks = job(2, broken_works.interrupt_a_wait, kind)
    ranks[0].expect("waits")
    os.kill(ranks[0].child.pid, signal.SIGINT)
    ranks[0].expect("interrupted")
    ranks[1].say()
    mine, other = (rank.expect("ended") for rank in ranks)
    if mine["error"]:  # else another thread carries it out, or it came before this one did
        assert mine["error"] == "AllhandsError", mine
    if kind == "LARGE" and mine["error"]:  # of a small one it had given its part
        assert (other["error"], other["reason"]) == ("GroupAborted", "Ctrl-C"), other
    for rank in ranks:
        assert rank.expect("next")["fine"]
    finished(ranks)


def test_signals_at_any_moment_leave_no_call_that_does_not_end(job: Job) -> None:
    ranks = job(2, broken_works.ring_at_any_moment)
    told = [rank.expect("done") for rank in ranks]
    assert sum(one["rang"] for one in told) > 0
    assert [(one["wrong"], one["fine"]) for one in told] == [(0, True)] * 2
    finished(ranks)


@REDUCTIONS
def test_another_call_under_the_same_number_is_told_with_a_table(job: Job, kind: str) -> None:
    ranks = job(2, broken_works.call_something_else, kind)
    for rank in ranks:
        told = rank.expect("failed")
        assert told["error"] == "CollectiveMismatch", told
        assert "MAX" in told["text"]
        assert "SUM" in told["text"]
    for rank in ranks:
        rank.say()
    finished(ranks)
