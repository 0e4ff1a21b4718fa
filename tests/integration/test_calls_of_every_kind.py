"""Calls of every kind over shared memory that are begun, or awaited."""

import pytest

from programs import calls_of_every_kind as program
from support.ranks.processes import Job, Process

KINDS = [case.name for case in program.list_cases(0, 2, 6, 0)]
SIZES = pytest.mark.parametrize("size", [2, 3])
LENGTHS = pytest.mark.parametrize("length", [*program.LENGTHS])


def finished(ranks: list[Process]) -> None:
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)


@SIZES
@LENGTHS
def test_calls_begun_among_others_keep_their_order_and_results(
    job: Job, size: int, length: str
) -> None:
    ranks = job(size, program.begin_every_kind, length)
    assert len({rank.expect("done")["calls"] for rank in ranks}) == 1
    finished(ranks)


@SIZES
def test_the_work_of_a_begun_call_has_its_output_as_result(job: Job, size: int) -> None:
    ranks = job(size, program.read_results)
    for at, rank in enumerate(ranks):
        told = rank.expect("done")["results"]
        without = {"barrier"} if at == 0 else {"barrier", "reduce", "gather"}
        assert told == {kind: None if kind in without else True for kind in KINDS}
    finished(ranks)


@SIZES
@LENGTHS
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_awaited_calls_have_their_results(job: Job, size: int, length: str, loop: str) -> None:
    ranks = job(size, program.await_every_kind, length, loop)
    for rank in ranks:
        rank.expect("done")
    finished(ranks)
