"""Composite calls on real ranks: their routes, and failures between steps."""

import signal

import pytest

from programs import composite_calls
from support.ranks.processes import BACKENDS, Job


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", [(False, "raise"), (True, "raise"), (False, "shrink")])
def test_steps_go_where_other_calls_go_and_mix_with_them(job: Job, how: tuple[bool, str]):
    verify, on_failure = how
    for rank in job(3, composite_calls.mix_with_other_calls, verify, on_failure):
        assert rank.expect("done") == {"what": "done", "wrong": [], "explained": True}
        assert rank.ended() == 0


@pytest.mark.parametrize("size", [1, 2, 3])
def test_calls_of_the_core_are_right_and_recorded_by_their_names(job: Job, size: int) -> None:
    for rank in job(size, composite_calls.exchange_at_once, 40):
        told = rank.expect("done")
        assert told["wrong"] == []
        assert told["refused"] == ("CollectiveMismatch" if size > 1 else None)
        assert (told["recorded"], told["signature"]) == (40, "all_gather_object()")
        assert "shared memory" in told["how"]
        assert told["queued"] == []
        assert rank.ended() == 0


def test_a_root_of_small_objects_goes_on_before_the_others_have_come(job: Job) -> None:
    ranks = job(3, composite_calls.send_objects_ahead)
    ranks[0].expect("ahead")
    for rank in ranks:
        rank.say()
    assert [rank.ended() for rank in ranks] == [0, 0, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_of_calls_are_right_in_their_order_and_named(job: Job):
    for rank in job(3, composite_calls.coalesce_calls):
        told = rank.expect("done")
        assert told["wrong"] == []
        assert told["error"] == "CollectiveMismatch", told
        assert "all_reduce_coalesced(float64[3],float64[4], SUM)" in told["text"]
        assert "all_reduce_coalesced(float64[3],float64[5], SUM)" in told["text"]
        assert "composite_calls.py" in told["text"]
        assert told["intact_arrays"] == [1, 1]
        assert told["names"].count("all_reduce_coalesced") == 13
        assert rank.ended() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_composite_call_that_meets_another_call_is_named(job: Job):
    for rank in job(2, composite_calls.mismatch_a_composite):
        told = rank.expect("done")
        assert told["error"] == "CollectiveMismatch", told
        assert "all_gather_object()" in told["text"]
        assert "all_reduce(float64[4], SUM)" in told["text"]
        assert told["found"] == [0, 1]
        assert rank.ended() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_late_for_a_composite_call_is_named(job: Job):
    ranks = job(3, composite_calls.miss_a_composite, 1.5)
    for rank in ranks:
        rank.expect("ready")
    for rank in (ranks[0], ranks[2]):
        told = rank.expect("ended")
        assert (told["error"], told["ranks"]) == ("CollectiveTimeout", [1]), told
        assert (told["op"], told["label"]) == ("all_gather_v", "late")
    ranks[1].say()
    # In shared memory it finds what the others had brought before they gave up.
    assert ranks[1].expect("ended")["error"] in (None, "CollectiveTimeout", "GroupAborted")
    for rank in ranks:
        assert rank.expect("lengths")["lengths"] == [0, 1, 2]
        assert rank.ended() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_killed_between_two_steps_is_named(job: Job):
    ranks = job(3, composite_calls.be_held_up_between_steps, 20)
    ranks[1].expect("between")
    ranks[1].child.send_signal(signal.SIGKILL)
    for rank in (ranks[0], ranks[2]):
        told = rank.expect("ended")
        assert (told["error"], told["ranks"]) == ("PeerFailed", [1]), told
        assert told["same"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_late_for_a_step_is_named_and_the_next_call_is_right(job: Job):
    ranks = job(3, composite_calls.be_held_up_between_steps, 1.5, True)
    ranks[1].expect("between")
    for rank in (ranks[0], ranks[2]):
        told = rank.expect("ended")
        assert (told["error"], told["ranks"]) == ("CollectiveTimeout", [1]), told
        assert told["same"]
        assert told["op"] == "all_reduce"
    ranks[1].say()
    assert ranks[1].expect("ended")["error"] in ("CollectiveTimeout", "GroupAborted")
    for rank in ranks:
        assert rank.expect("sum")["sum"] == 3
        assert rank.ended() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_are_awaited_and_cancelled_in_asyncio(job: Job):
    ranks = job(3, composite_calls.call_from_asyncio)
    ranks[0].expect("cancelled")
    for rank in ranks[1:]:
        rank.say()
    for at, rank in enumerate(ranks):
        told = rank.expect("done")
        assert told["lengths"] == [0, 1, 2]
        assert told["objects"] == [{"rank": one} for one in range(3)]
        assert (told["x"], told["one"], told["total"]) == (at + 1, "abc"[at], 3)
        assert "cancelled" in told["ended"]
        assert rank.ended() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_chain_is_not_mistaken_for_the_movement_it_begins_with(job: Job):
    for rank in job(2, composite_calls.call_a_step_elsewhere):
        told = rank.expect("done")
        assert told["error"] == "CollectiveMismatch", told
        assert "all_reduce(float64[4], USER(add))" in told["text"]
        assert "all_to_all_single(float64[any], gives [2, 2], expects [2, 2])" in told["text"]
        assert (told["fine"], told["sum"]) == (True, 1)
        assert rank.ended() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_call_given_up_between_two_steps_ends_for_all_at_once(job: Job):
    ranks = job(3, composite_calls.cancel_between_steps)
    ranks[1].expect("between")
    ranks[1].say()
    for rank in (ranks[0], ranks[2], ranks[1]):
        if rank is ranks[1]:
            rank.say()  # the others ended while it was still at its part
        told = rank.expect("ended")
        assert told["same"]
        assert told["error"] == ("AllhandsError" if rank is ranks[1] else "GroupAborted"), told
    for at, rank in enumerate(ranks):
        assert rank.expect("sum")["sum"] == (0, 1, 3)[at]
        assert rank.ended() == 0
