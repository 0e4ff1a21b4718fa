"""Copies of the next round, made while the round before receives."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allhands.collectives.algorithms import bruck, ring
from allhands.collectives.algorithms.blocks import split_evenly
from allhands.collectives.buffer import Buffer
from allhands.collectives.part import Assembly, Part
from allhands.collectives.schedule import (
    Area,
    Copy,
    Recv,
    Round,
    Schedule,
    Send,
    Span,
    may_copy_ahead,
)
from allhands.engine.links.copies_ahead import PIECE_BYTES, CopiesAhead
from allhands.engine.links.executor import Execution
from allhands.testing import simulate
from allhands.transport.inbox import PostedReceive
from allhands.transport.outbox import PendingSend

PIECE = PIECE_BYTES
NOTHING = Buffer([], np.dtype(np.uint8))


class Network:
    """A mesh that only records receives; all that is sent has left."""

    def __init__(self) -> None:
        self.posted: list[PostedReceive] = []

    def post(self, peer: int, key: object, incoming: PostedReceive) -> None:
        self.posted.append(incoming)

    def send(self, peer: int, message: PendingSend) -> None:
        message.done(True)


class Rank:
    """Rank 0 of two that gathers blocks of `count` bytes."""

    def __init__(self, count: int, *, checks_arrivals: bool = False) -> None:
        self.count = count
        self.x = np.arange(1, count + 1, dtype=np.uint32).view(np.uint8)[:count]
        self.out = np.zeros(2 * count, np.uint8)
        self.network = Network()
        self.execution = Execution(
            self.network,  # type: ignore[arg-type]
            peers=range(2),
            rank=0,
            group=7,
            sequence=3,
            signature=5,
        )
        schedule, dtype = ring.all_gather(0, 2, [count, count]), self.x.dtype
        arrivals = Schedule((Round(recvs=(Recv(1, Span(Area.OUTPUT, 0, 0)),)),))
        self.ended = self.execution.begin(
            [Part(schedule, Buffer([self.x], dtype), Buffer([self.out], dtype))],
            arrival_check=Assembly(Part(arrivals, NOTHING, NOTHING)) if checks_arrivals else None,
        )

    def has_copied(self, count: int) -> bool:
        """Say whether so much of the own block is in the output, and no more."""
        wanted = np.zeros(self.count, np.uint8)
        wanted[:count] = self.x[:count]
        return bool((self.out[: self.count] == wanted).all())

    def come(self, stop: int) -> None:
        """Let the other rank's block arrive up to a byte."""
        (data,) = [one for one in self.network.posted if one.total == self.count]
        assert data.room is not None
        if stop < self.count:
            data.room(stop, self.count - stop)  # for what comes next
        else:
            data.done(None)


async def test_the_own_block_is_copied_as_the_others_arrive() -> None:
    rank = Rank(4 * PIECE)
    assert rank.has_copied(0)
    rank.come(0)
    assert rank.has_copied(0)
    rank.come(2 * PIECE)
    assert rank.has_copied(2 * PIECE)
    rank.come(2 * PIECE + 1)  # too little to begin for
    assert rank.has_copied(2 * PIECE)
    rank.come(4 * PIECE)
    assert rank.has_copied(4 * PIECE)
    assert rank.ended.done()


async def test_nothing_is_copied_to_outputs_before_all_ranks_are_in_the_call() -> None:
    rank = Rank(2 * PIECE, checks_arrivals=True)
    rank.come(PIECE)
    assert rank.has_copied(0)
    assert not rank.execution.has_touched
    rank.network.posted[0].done(None)  # of the arrival check
    rank.come(PIECE)
    assert rank.has_copied(PIECE)
    assert rank.execution.has_touched
    rank.come(2 * PIECE)
    assert rank.has_copied(2 * PIECE)


def test_copies_that_messages_of_the_round_concern_wait_for_its_end() -> None:
    copy = Copy(Span(Area.INPUT, 0, 4), Span(Area.OUTPUT, 4, 8))
    assert may_copy_ahead(Round(), [copy])
    assert may_copy_ahead(Round(sends=(Send(1, copy.source),)), [copy])
    assert may_copy_ahead(Round(recvs=(Recv(1, Span(Area.OUTPUT, 0, 4)),)), [copy])
    assert not may_copy_ahead(Round(sends=(Send(1, Span(Area.OUTPUT, 7, 9)),)), [copy])
    assert not may_copy_ahead(Round(recvs=(Recv(1, Span(Area.OUTPUT, 7, 9)),)), [copy])
    held = Copy(Span(Area.SCRATCH, 0, 4), Span(Area.OUTPUT, 4, 8))
    assert not may_copy_ahead(Round(recvs=(Recv(1, Span(Area.SCRATCH, 3, 5)),)), [held])


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6),
    st.lists(st.integers(0, 5), min_size=1, max_size=6),
    st.lists(st.integers(0, 40), max_size=5),
)
def test_a_copy_is_whole_however_its_ends_are_cut(
    sources: list[int], targets: list[int], steps: list[int]
) -> None:
    count = min(sum(sources), sum(targets))
    given_values = np.arange(sum(sources), dtype=np.int32)
    output = np.full(sum(targets), -1, np.int32)
    areas = {Area.INPUT: cut(given_values, sources), Area.OUTPUT: cut(output, targets)}
    ahead = CopiesAhead(
        areas, [Copy(Span(Area.INPUT, 0, count), Span(Area.OUTPUT, 0, count))], piece_bytes=1
    )
    for step in sorted(steps):
        ahead.advance(step)
        whole = min(step // 4, count)
        assert output[:whole].tolist() == list(range(whole))
    ahead.finish()
    assert output.tolist() == [*range(count), *[-1] * (len(output) - count)]


def cut(array: np.typing.NDArray[np.int32], lengths: Sequence[int]) -> Buffer:
    ends = np.cumsum(lengths)
    pieces = [
        array[end - length : end] for end, length in zip(ends, lengths, strict=True) if length
    ]
    return Buffer(pieces, array.dtype)


@pytest.mark.parametrize("algorithm", [ring.all_gather, bruck.all_gather, ring.reduce_scatter])
@pytest.mark.parametrize("size", range(2, 10))
def test_copies_made_as_early_as_they_may_give_the_same_result(
    algorithm: Callable[[int, int, Sequence[int]], Schedule], size: int
) -> None:
    counts = split_evenly(3 * size + 1, size)
    gathers = algorithm is not ring.reduce_scatter
    lengths = counts if gathers else [sum(counts)] * size
    inputs = [np.arange(length) + 100 * rank for rank, length in enumerate(lengths)]
    schedules = [algorithm(rank, size, counts) for rank in range(size)]
    results = []
    for made in (schedules, list(map(move_copies_ahead, schedules))):
        outputs = [np.full(sum(counts) if gathers else count, -1) for count in counts]
        simulate(made, inputs=inputs, outputs=outputs)
        results.append([output.tolist() for output in outputs])
    assert results[0] == results[1]


def move_copies_ahead(schedule: Schedule) -> Schedule:
    rounds = list(schedule.rounds)
    for at in range(len(rounds) - 1):
        copies = rounds[at + 1].copies
        if may_copy_ahead(rounds[at], copies):
            rounds[at] = replace(rounds[at], copies=(*rounds[at].copies, *copies))
            rounds[at + 1] = replace(rounds[at + 1], copies=())
    return replace(schedule, rounds=tuple(rounds))
