"""Paced parts: a call's slices as one part, whose messages go in rounds of short pieces.

Such messages need not be asked for, and are soon used up: so their receivers hold little of them.
"""

from collections.abc import Sequence
from functools import lru_cache

from allhands.collectives.algorithms import dissemination
from allhands.collectives.buffer import Buffer
from allhands.collectives.part import Part
from allhands.collectives.schedule import Area, Copy, Fold, Recv, Round, Schedule, Send, Span
from allhands.collectives.split_rounds import split_rounds
from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class _Slice:
    """A part's schedule, and the elements of its buffers."""

    schedule: Schedule
    input_length: int
    output_length: int


def pace_parts(
    parts: Sequence[Part], pieces: int, rank: int, size: int, *, meets_first: bool
) -> Part:
    """Return the parts one after the other as one, with every message in so many `pieces`.

    With `meets_first` all ranks hear from all before anything else. All ranks must give the same
    `pieces` and `meets_first`.
    """
    slices = tuple(_Slice(part.schedule, len(part.input), len(part.output)) for part in parts)
    schedule = _pace(slices, pieces, rank, size, meets_first)
    return Part(
        schedule,
        _join_buffers([part.input for part in parts]),
        _join_buffers([part.output for part in parts]),
        parts[0].name,
    )


@lru_cache(maxsize=64)
def _pace(
    slices: Sequence[_Slice], pieces: int, rank: int, size: int, meets_first: bool
) -> Schedule:
    rounds = list(dissemination.barrier(rank, size).rounds) if meets_first else []
    shifts = {Area.INPUT: 0, Area.OUTPUT: 0, Area.SCRATCH: 0}
    for one in slices:
        split = split_rounds(one.schedule, pieces)
        rounds += [_shift_round(step, shifts) for step in split.rounds]
        shifts[Area.INPUT] += one.input_length
        shifts[Area.OUTPUT] += one.output_length
    return Schedule(tuple(rounds), max(one.schedule.scratch for one in slices))


def _shift_round(step: Round, shifts: dict[Area, int]) -> Round:
    """Return the round with its spans so many elements further on in their areas."""

    def shift(span: Span) -> Span:
        by = shifts[span.area]
        return Span(span.area, span.start + by, span.stop + by)

    return Round(
        tuple(Copy(shift(one.source), shift(one.target)) for one in step.copies),
        tuple(Send(one.peer, shift(one.span)) for one in step.sends),
        tuple(Recv(one.peer, shift(one.span), one.reduces) for one in step.recvs),
        tuple(Fold(tuple(map(shift, one.sources)), shift(one.target)) for one in step.folds),
    )


def _join_buffers(buffers: Sequence[Buffer]) -> Buffer:
    arrays = [array for buffer in buffers for array in buffer.arrays]
    return Buffer(arrays, buffers[0].dtype)
