"""Links lent to calls on their callers' threads: deaths, deadlines and handovers meanwhile."""

import os
import signal

import pytest

from programs import lent_links
from support.ranks.processes import Job

pytestmark = pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "tls"])


@pytest.mark.parametrize("length", [2, 100_000])
@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_killed_within_a_call_of_the_core_is_named_by_every_survivor(
    job: Job, size: int, length: int
) -> None:
    ranks = job(size, lent_links.die_within_a_call, length)
    for survivor in (rank for place, rank in enumerate(ranks) if place != 1):
        told = survivor.expect("failed")
        assert told["error"] == "PeerFailed", told
        assert told["ranks"] == [1]
        assert f"pid {ranks[1].child.pid}" in told["text"]
        assert told["seen"] > 0
        assert survivor.expect("next")["ranks"] == [1]


def test_a_deadline_passed_within_a_call_of_the_core_names_who_did_not_come(job: Job) -> None:
    ranks = job(2, lent_links.miss_a_call)
    told = ranks[0].expect("late")
    assert (told["error"], told["ranks"]) == ("CollectiveTimeout", [1]), told
    assert (told["op"], told["label"]) == ("all_reduce", "step 7")
    ranks[1].say()
    ranks[1].expect("late")
    for rank in ranks:
        assert rank.expect("next")["y"] == [3.0] * 3
        assert rank.ended() == 0, "".join(rank.errors)


def test_unlike_calls_are_refused_on_both_ranks_and_touch_nothing(job: Job) -> None:
    ranks = job(2, lent_links.differ_in_a_call)
    told = [rank.expect("unlike") for rank in ranks]
    for one in told:
        assert one["error"] == "CollectiveMismatch", one
        assert one["kept"]
        assert "float32[8]" in one["text"]
        assert "float32[9]" in one["text"]
    for rank in ranks:
        assert rank.expect("next")["y"] == [3.0] * 3
        assert rank.ended() == 0, "".join(rank.errors)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_among_messages_of_the_core_is_named(job: Job, victim: int) -> None:
    ranks = job(2, lent_links.die_within_messages)
    for rank in ranks:
        assert rank.expect("running")["direct"] > 50
    os.kill(ranks[victim].child.pid, signal.SIGKILL)
    told = ranks[1 - victim].expect("failed")
    assert (told["error"], told["ranks"]) == ("PeerFailed", [victim]), told


@pytest.mark.parametrize("verify", [False, True], ids=["unverified", "verified"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_calls_handed_over_at_any_time_give_the_right_numbers(
    job: Job, size: int, verify: bool
) -> None:
    ranks = job(size, lent_links.hand_over_at_any_time, 100, verify)
    told = [rank.expect("done") for rank in ranks]
    assert [one["wrong"] for one in told] == [[]] * size
    assert all(one["seen"] > one["handed"] > 0 for one in told), told
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)
