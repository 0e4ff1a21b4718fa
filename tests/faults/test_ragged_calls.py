"""Failures of scatter_v and reduce_scatter_v over shared memory, on their callers' threads."""

import os
import signal

import pytest

from programs import ragged_calls as program
from support.ranks.processes import Job, Process

CALLS = pytest.mark.parametrize("name", ["scatter_v", "reduce_scatter_v"])
LENGTHS = pytest.mark.parametrize("length", [3, 30_000])
SIZES = pytest.mark.parametrize("size", [2, 3])


def finished(ranks: list[Process]) -> None:
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)


@CALLS
@LENGTHS
@SIZES
def test_a_rank_that_dies_before_a_call_is_named_by_all_that_need_it(
    job: Job, size: int, name: str, length: int
) -> None:
    *others, victim = job(size, program.lose_a_rank, name, length)
    victim.expect("here")
    for rank in others:
        rank.expect("called")
    os.kill(victim.child.pid, signal.SIGKILL)
    for rank in others:
        told = rank.expect("failed")
        assert (told["error"], told["ranks"]) == ("PeerFailed", [size - 1]), told
        assert name in told["text"]
    finished(others)


@CALLS
@LENGTHS
@SIZES
def test_a_rank_that_comes_late_is_named_and_later_calls_are_right(
    job: Job, size: int, name: str, length: int
) -> None:
    *others, late = job(size, program.wait_for_a_rank, name, length)
    for rank in others:
        told = rank.expect("timeout")
        assert (told["error"], told["op"]) == ("CollectiveTimeout", name), told
        assert told["ranks"] == [size - 1]
    late.say()
    late.expect("late")  # which may find all that it needs, and end well
    for rank in (*others, late):
        assert rank.expect("next")["right"]
    finished([*others, late])
