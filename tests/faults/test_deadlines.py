"""Deadlines of blocks in whole jobs, on every route of a call."""

import pytest

from programs import deadlines
from support.ranks.processes import BACKENDS, Job


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_block_ends_every_kind_of_call_in_time_and_the_group_goes_on(job: Job) -> None:
    ranks = job(2, deadlines.call_within_deadlines)
    for seconds in (0.05, 0):
        for number in range(8):
            told = ranks[0].expect("ended")
            wanted = "CollectiveTimeout" if number < 7 else "StoreTimeout"
            assert told["error"] == wanted, (seconds, number, told)
            if number < 7:
                assert ("timed out after 0.0" if seconds else "before it began") in told["text"]
            if number < 5:
                ranks[1].say()
    for rank in ranks:
        assert rank.expect("next")["y"] == [2.0] * 3
        assert rank.ended() == 0, "".join(rank.errors)


def test_a_call_over_shared_memory_is_told_of_when_it_stalls_and_when_it_goes_on(job: Job) -> None:
    ranks = job(2, deadlines.log_a_slow_call)
    told = ranks[0].expect("log")
    assert told["event"] == "stall", told
    assert (told["operation"], told["sequence"], told["waiting_for"]) == ("all_reduce", 2, [1])
    assert "waiting for rank 1 (host" in told["text"]
    ranks[1].say()
    told = ranks[0].expect("log")
    assert told["event"] == "stall over", told
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_a_rank_that_leaves_after_a_timeout_hides_not_whom_the_others_wait_for(job: Job) -> None:
    ranks = job(3, deadlines.leave_after_a_timeout, 0.3)
    told = [rank.expect("ended") for rank in ranks[:2]]
    assert [one["error"] for one in told] == ["CollectiveTimeout"] * 2, told
    assert [one["ranks"] for one in told] == [[2], [2]]
    assert told[0]["verdict"] == told[1]["verdict"]
    ranks[2].say()
    assert [rank.ended() for rank in ranks] == [0, 0, 0]


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_a_rank_that_leaves_before_anybody_times_out_is_named(job: Job) -> None:
    ranks = job(3, deadlines.leave_after_a_timeout, 30.0)
    ranks[0].expect("ended")
    told = ranks[1].expect("ended")
    assert (told["error"], told["ranks"]) == ("PeerFailed", [0]), told
    ranks[2].say()
