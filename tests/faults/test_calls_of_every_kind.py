"""Awaited calls of every kind over shared memory, and failures of the others."""

import os
import signal

import pytest

from programs import calls_of_every_kind as program
from support.ranks.processes import Job, Process

CASES = program.list_cases(0, 3, 6, 1)
LENGTHS = pytest.mark.parametrize("length", ["SMALL", "LARGE"])
DIFFERENT = [
    ("broadcast", "reduce"),
    ("scan", "exscan"),
    ("barrier", "all_reduce"),
    ("all_gather_into_tensor", "all_to_all_single"),
    ("gather", "scatter"),
    ("all_gather", "all_to_all"),
    ("reduce_scatter", "reduce_scatter_tensor"),
]
"""What rank 0 awaits, and rank 1 at the same time."""


def finished(ranks: list[Process]) -> None:
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)


@LENGTHS
def test_an_awaited_call_whose_time_is_over_names_who_is_missing(job: Job, length: str) -> None:
    ranks = job(2, program.await_a_missing_rank, length)
    for case in CASES:
        told = ranks[0].expect("failed")
        assert (told["kind"], told["op"], told["ranks"]) == (case.name, case.name, [1])
        ranks[0].expect("late")
        ranks[1].say()
        ranks[1].expect("late")  # which may find all that it needs, and end well
    for rank in ranks:
        assert rank.expect("next")["right"]
    finished(ranks)


@LENGTHS
@pytest.mark.parametrize("kind", ["broadcast", "scan", "all_gather", "scatter", "barrier"])
def test_who_awaits_a_rank_hears_of_its_death(job: Job, kind: str, length: str) -> None:
    ranks = job(3, program.await_a_dead_rank, kind, length)
    ranks[1].expect("here")
    for rank in (ranks[0], ranks[2]):
        rank.expect("begun")
    os.kill(ranks[1].child.pid, signal.SIGKILL)
    for rank in (ranks[0], ranks[2]):
        assert rank.expect("failed")["ranks"] == [1]
    finished([ranks[0], ranks[2]])


def test_different_awaited_calls_are_refused_and_nothing_is_written(job: Job) -> None:
    ranks = job(2, program.await_differently, DIFFERENT)
    for pair in DIFFERENT:
        told = [rank.expect("refused") for rank in ranks]
        assert [one["call"] for one in told] == [*pair]
        assert [one["kept"] for one in told] == [True, True]
        assert told[0]["table"] == told[1]["table"]
        assert sorted(told[0]["table"]) == ["0", "1"]
    for rank in ranks:
        assert rank.expect("next")["right"]
    finished(ranks)
