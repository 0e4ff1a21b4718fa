"""Faults between the end of a call on one rank and the moment when all know that all have it."""

import os
import signal
from typing import Any

import pytest

from programs import confirmation
from support.ranks.processes import BACKENDS, Job, Process

LINKED = [one for one in BACKENDS if one != "grpc"]


def kill(rank: Process) -> None:
    os.kill(rank.child.pid, signal.SIGKILL)


def each(ranks: list[Process], *what: str) -> list[dict[str, Any]]:
    return [rank.expect(*what) for rank in ranks]


@pytest.mark.parametrize("backend", ["auto"])
@pytest.mark.parametrize(
    ("mode", "error", "after"), [("raise", "PeerFailed", 1.0), ("shrink", None, 2.0)]
)
def test_a_call_whose_result_all_survivors_have_is_done_if_a_rank_dies_before_confirming(
    job: Job, mode: str, error: str | None, after: float
) -> None:
    ranks = job(3, confirmation.die_before_confirming, mode)
    ranks[1].expect("computed")
    kill(ranks[1])
    for told in each([ranks[0], ranks[2]], "ended"):
        assert told == {"what": "ended", "error": None, "sum": 111.0}
    for told in each([ranks[0], ranks[2]], "next"):
        assert told == {"what": "next", "error": error, "sum": after}


@pytest.mark.parametrize("backend", LINKED)
def test_a_call_that_one_survivor_has_not_is_taken_back_by_the_others(job: Job) -> None:
    ranks = job(4, confirmation.lose_a_rank_that_one_did_not_need)
    each(ranks, "running")
    ranks[2].expect("confirming")
    kill(ranks[1])
    ranks[3].say("go on")
    survivors = [ranks[0], ranks[2], ranks[3]]
    for told, value in zip(each(survivors, "failed"), (10.0, 30.0, 40.0), strict=True):
        assert told == {"what": "failed", "x": value, "intact": True}
    for told in each(survivors, "retried"):
        assert told == {"what": "retried", "x": 10.0, "size": 3}


@pytest.mark.parametrize("backend", LINKED)
@pytest.mark.parametrize("waits", [True, False])
def test_survivors_of_a_kill_at_any_moment_have_had_the_same_results(job: Job, waits: bool) -> None:
    ranks = job(4, confirmation.sum_until_killed, waits)
    each(ranks, "running")
    kill(ranks[1])
    survivors = [ranks[0], ranks[2], ranks[3]]
    told = each(survivors, "shrunk")
    assert {one["full"] for one in told} == {told[0]["full"]}
    assert [one["others"] for one in told] == [[1101.0]] * 3
    for one in each(survivors, "next"):
        assert one == {"what": "next", "sum": 3.0, "size": 3}


@pytest.mark.parametrize("backend", LINKED)
def test_a_deadline_that_passes_on_one_rank_ends_the_call_on_those_that_had_done_their_part(
    job: Job,
) -> None:
    ranks = job(3, confirmation.reduce_with_a_late_rank)
    told = each([ranks[0], ranks[2]], "ended")
    assert [one["x"] for one in told] == [1.0, 1.0]
    assert told[1]["error"] == "CollectiveTimeout"
    assert told[0]["error"] is not None
    ranks[1].say("go on")
    late = ranks[1].expect("ended")
    assert (late["error"] is not None, late["x"]) == (True, 1.0)
    for one in each(ranks, "next"):
        assert one["sum"] == 3.0


@pytest.mark.parametrize("backend", LINKED)
def test_ctrl_c_during_a_confirmation_leaves_the_call_to_end_well(job: Job) -> None:
    ranks = job(3, confirmation.interrupt_a_confirmation)
    ranks[0].expect("confirming")
    os.kill(ranks[0].child.pid, signal.SIGINT)
    assert ranks[0].expect("interrupted")["error"] == "KeyboardInterrupt"
    for rank in ranks[1:]:
        rank.say("go on")
    for told in each(ranks, "next"):
        assert told == {"what": "next", "x": 0.0, "sum": 9.0, "returned": 10}
