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
