"""Deferred calls over shared memory, and the threads for them."""

import pytest

from programs import awaited_calls, works_over_memory
from support.ranks.processes import Job, Process

KINDS = pytest.mark.parametrize(
    ("kind", "length"), [("all_reduce", "SMALL"), ("all_reduce", "LARGE"), ("broadcast", "SMALL")]
)


def finished(ranks: list[Process]) -> None:
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)


@KINDS
def test_a_call_that_nobody_waits_for_keeps_no_other_rank_waiting(
    job: Job, kind: str, length: str
) -> None:
    ranks = job(2, works_over_memory.begin_and_do_something_else, kind, length)
    ranks[0].expect("does something else")
    assert ranks[1].expect("ended")["right"]
    ranks[0].say()
    assert ranks[0].expect("ended")["right"]
    finished(ranks)


@KINDS
@pytest.mark.parametrize(
    "ask",
    [
        *works_over_memory.ASKING,
    ],
)
def test_however_its_end_is_asked_for_it_comes(job: Job, kind: str, length: str, ask: str) -> None:
    ranks = job(2, works_over_memory.ask_for_the_end, kind, length, ask)
    for rank in ranks:
        how = rank.expect("done")["how"]
        assert how.startswith(f"{kind} #")
        assert ", over shared memory, " in how
    finished(ranks)


def test_nobody_is_woken_for_a_small_call_that_is_waited_for(job: Job) -> None:
    ranks = job(2, works_over_memory.call_small_ones)
    for rank in ranks:
        assert rank.expect("done")["threads"] == []
    finished(ranks)


@KINDS
def test_calls_can_be_begun_that_others_are_far_from(job: Job, kind: str, length: str) -> None:
    ranks = job(2, works_over_memory.begin_many, kind, length)
    ranks[0].expect("begun")
    for rank in ranks[::-1]:
        rank.say()
    for rank in ranks:
        assert rank.expect("done")["right"]
    finished(ranks)


def test_a_call_can_be_begun_that_has_no_room_yet(job: Job) -> None:
    """The peers are as many calls behind as the slots allow."""
    ranks = job(2, works_over_memory.begin_beyond_the_room)
    ranks[0].expect("begun")
    ranks[1].say()
    finished(ranks)


def test_calls_on_one_array_have_each_the_result_of_the_one_before(job: Job) -> None:
    finished(job(3, works_over_memory.begin_on_one_array))


def test_a_call_that_is_cancelled_among_many_is_the_only_one(job: Job) -> None:
    ranks = job(2, works_over_memory.cancel_among_many)
    ranks[0].expect("cancelled")
    ranks[1].say()
    for rank in ranks:
        assert rank.expect("done")["right"] == [True] * 8
    finished(ranks)


def test_a_call_ends_for_who_waits_though_the_next_one_is_under_way(job: Job) -> None:
    ranks = job(2, works_over_memory.wait_for_the_first)
    ranks[0].expect("begun")
    ranks[1].say()
    ranks[0].expect("first")
    ranks[1].say()
    finished(ranks)


def test_a_call_that_waited_for_its_turn_is_recorded_as_begun_when_that_came(job: Job) -> None:
    ranks = job(2, works_over_memory.look_when_calls_began)
    queued = ranks[0].expect("begun")["started"]
    ranks[1].say()
    done = ranks[0].expect("done")
    assert done["started"][0] == queued[0]
    assert queued[1] < done["started"][1] < done["finished"][1]
    assert done["finished"][0] <= done["started"][1]
    assert done["unchanged"] == [True, True]
    finished(ranks)


def test_calls_of_all_ways_keep_one_order(job: Job) -> None:
    """Queued in the core or on the loop, or on the caller's thread; results tell the order."""
    ranks = job(3, works_over_memory.call_in_every_way)
    told = [rank.expect("done")["calls"] for rank in ranks]
    assert told == [361] * 3
    finished(ranks)


def test_a_call_ends_well_though_its_time_was_over_when_somebody_waited(job: Job) -> None:
    ranks = job(2, works_over_memory.wait_past_the_deadline)
    for rank in ranks:
        rank.expect("begun")
    for rank in ranks:
        rank.say()
    finished(ranks)


@KINDS
def test_the_deadline_of_a_call_holds_though_nobody_asks_for_it(
    job: Job, kind: str, length: str
) -> None:
    ranks = job(2, works_over_memory.leave_a_call_alone, kind, length)
    assert ranks[0].expect("ended")["error"] == "CollectiveTimeout"
    ranks[1].say()
    finished(ranks)


def test_a_work_that_outlives_its_group_leaves_the_memory_alone(job: Job) -> None:
    finished(job(2, works_over_memory.outlive_a_group))


@pytest.mark.parametrize("is_crowded", [False, True])
def test_calls_awaited_without_a_pause_leave_turns_to_other_tasks(
    job: Job, is_crowded: bool
) -> None:
    ranks = job(2, awaited_calls.call_without_a_pause, is_crowded)
    for rank in ranks:
        assert rank.expect("done")["turns"] >= awaited_calls.CALLS // 16
    finished(ranks)


def test_a_loop_goes_on_while_another_rank_is_late(job: Job) -> None:
    ranks = job(2, awaited_calls.await_a_late_rank)
    ranks[0].expect("goes on")
    ranks[1].say()
    ranks[1].expect("goes on")
    for rank in ranks:
        rank.expect("done")
    finished(ranks)


@pytest.mark.parametrize("ask", [*works_over_memory.ASKING])
def test_however_the_end_of_a_composite_call_is_asked_for_it_comes(job: Job, ask: str) -> None:
    ranks = job(2, works_over_memory.ask_for_the_end_of_composites, ask)
    for rank in ranks:
        rank.expect("done")
    finished(ranks)


@pytest.mark.parametrize("n", [2, 4])
def test_composite_calls_are_right_that_were_begun_beside_others(job: Job, n: int) -> None:
    ranks = job(n, works_over_memory.begin_many_composites)
    ranks[0].expect("begun")
    for rank in ranks[1:]:
        rank.say()
    for rank in ranks:
        assert rank.expect("done")["wrong"] == []
    finished(ranks)


def test_what_a_call_gives_is_read_once_though_two_threads_ask_for_it(job: Job) -> None:
    ranks = job(2, works_over_memory.read_in_two_threads)
    for rank in ranks:
        told = rank.expect("done")
        assert told["ranks"] == [0, 1]
        assert (told["is_same"], told["readers"]) == (True, 1)
    finished(ranks)


def test_who_cannot_read_an_object_that_was_begun_fails_alone(job: Job) -> None:
    ranks = job(2, works_over_memory.await_an_unknown_object)
    for rank, error in zip(ranks, (None, "ValueError"), strict=True):
        told = rank.expect("done")
        assert (told["error"], told["again"]) == (error, error), told
        assert told["is_success"] == (error is None)
        assert told["sum"] == 2
    finished(ranks)


@pytest.mark.parametrize("n", [2, 3])
def test_composite_calls_are_right_that_go_on_in_several_attempts(job: Job, n: int) -> None:
    ranks = job(n, works_over_memory.poll_large_composites)
    for rank in ranks:
        assert rank.expect("done")["wrong"] == []
    finished(ranks)


def test_a_call_may_be_begun_while_its_ranks_find_out_that_they_share_memory(job: Job) -> None:
    ranks = job(2, works_over_memory.begin_while_memory_opens)
    for rank in ranks:
        said = rank.expect("done")
        assert said["met"]
        assert said["values"] == [[2.0, 2.0]] * 3
        assert ", over shared memory, " in said["how"]
    finished(ranks)
