"""One rank's buffers under a schedule, checked against the rules of a round."""

from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from allhands.collectives.schedule import Area, Copy, Fold, Recv, Round, Schedule, Send, Span
from allhands_proto.quick_dataclass import dataclass

Array = npt.NDArray[np.generic]
Reduce = Callable[[Array, Array], Array]
"""Given the contribution of the lower rank and of the higher one, return a new array."""


class ScheduleError(ValueError):
    """Schedules break the law, or do not belong together; the text names round and ranks."""


@dataclass(frozen=True, slots=True)
class _AreaState:
    """An area and the mask of its undefined elements; None: all are defined."""

    values: Array
    undefined: npt.NDArray[np.bool_] | None


class Replica:
    """Buffers of one rank while schedules are simulated, in place in the output.

    Without an input the operation is in place: the output holds something from the start. With
    one, the output is undefined until it is written, like scratch; nothing undefined may be read.
    """

    def __init__(
        self, rank: int, schedule: Schedule, given: Array | None, output: Array, reduce: Reduce
    ) -> None:
        self.rank = rank
        self.rounds = schedule.rounds
        self._reduce = reduce
        self._areas = {
            Area.INPUT: _AreaState(np.empty(0, output.dtype) if given is None else given, None),
            Area.OUTPUT: _AreaState(output, None if given is None else _make_mask(len(output))),
            Area.SCRATCH: _AreaState(
                np.empty(schedule.scratch, output.dtype), _make_mask(schedule.scratch)
            ),
        }

    def begin(self, index: int) -> None:
        """Do the copies of a round, and check the spans of its receives."""
        step = self.rounds[index]
        for copy in step.copies:
            self._copy(index, copy)
        for fold in step.folds:
            self._fold(index, fold)
        if len(step.recvs) > 1:
            self._check_overlaps(index, step)

    def read_send(self, index: int, send: Send) -> Array:
        """Return a snapshot of the data sent in a round."""
        return self._read(index, send.span, "sends").copy()

    def apply_receive(self, index: int, recv: Recv, values: Array) -> None:
        """Apply the data of a receive of a round."""
        if len(values) != len(recv.span):
            raise ScheduleError(
                f"round {index}: rank {recv.peer} sends {len(values)} elements to rank "
                f"{self.rank}, which expects {len(recv.span)}"
            )
        if recv.reduces:
            held = self._read(index, recv.span, "reduces into")
            if recv.peer < self.rank:
                values = self._reduce(values, held)
            else:
                values = self._reduce(held, values)
        self._write(index, recv.span, values, "receives into")

    def _copy(self, index: int, copy: Copy) -> None:
        if len(copy.source) != len(copy.target):
            self._refuse(
                index, f"copies {_format_span(copy.source)} to {_format_span(copy.target)}"
            )
        if copy.source.overlaps(copy.target):
            self._refuse(
                index,
                f"copies {_format_span(copy.source)} onto itself, {_format_span(copy.target)}",
            )
        self._write(index, copy.target, self._read(index, copy.source, "copies"), "copies into")

    def _fold(self, index: int, fold: Fold) -> None:
        for source in fold.sources:
            partly = source != fold.target and source.overlaps(fold.target)
            if partly or len(source) != len(fold.target):
                self._refuse(
                    index, f"folds {_format_span(source)} into {_format_span(fold.target)}"
                )
        first, *others = [self._read(index, source, "folds").copy() for source in fold.sources]
        for other in others:
            first = self._reduce(first, other)
        self._write(index, fold.target, first, "folds into")

    def _check_overlaps(self, index: int, step: Round) -> None:
        for position, recv in enumerate(step.recvs):
            for earlier in step.recvs[:position]:
                both_reduce = recv.reduces and earlier.reduces
                if recv.span.overlaps(earlier.span) and not both_reduce:
                    self._refuse(
                        index,
                        f"receives {_format_span(earlier.span)} from rank {earlier.peer} and, "
                        "over it, "
                        f"{_format_span(recv.span)} from rank {recv.peer}",
                    )

    def _read(self, index: int, span: Span, verb: str) -> Array:
        memory = self._get_area(index, span, verb)
        if memory.undefined is not None and memory.undefined[span.start : span.stop].any():
            self._refuse(index, f"{verb} {_format_span(span)} before it was written")
        return memory.values[span.start : span.stop]

    def _write(self, index: int, span: Span, values: Array, verb: str) -> None:
        if span.area is Area.INPUT:
            self._refuse(index, f"{verb} {_format_span(span)}, which is never written")
        memory = self._get_area(index, span, verb)
        memory.values[span.start : span.stop] = values
        if memory.undefined is not None:
            memory.undefined[span.start : span.stop] = False

    def _get_area(self, index: int, span: Span, verb: str) -> _AreaState:
        memory = self._areas[span.area]
        if span.stop > len(memory.values):
            self._refuse(index, f"{verb} {_format_span(span)} of {len(memory.values)} elements")
        return memory

    def _refuse(self, index: int, what: str) -> NoReturn:
        raise ScheduleError(f"round {index}: rank {self.rank} {what}")


def make_replicas(
    schedules: Sequence[Schedule],
    inputs: Sequence[Array] | None,
    outputs: Sequence[Array],
    reduce: Reduce,
) -> list[Replica]:
    """Make the replicas of all ranks; check all that is known before data moves.

    Raises:
        ScheduleError: ranks list different numbers of rounds, or a peer that is no other rank.
        ValueError: the numbers of buffers and schedules differ.
    """
    size = len(schedules)
    given: Sequence[Array | None] = [None] * size if inputs is None else inputs
    if not len(given) == len(outputs) == size:
        raise ValueError(f"{size} schedules, {len(given)} inputs and {len(outputs)} outputs")
    for rank, schedule in enumerate(schedules):
        if len(schedule.rounds) != len(schedules[0].rounds):
            raise ScheduleError(
                f"rank 0 lists {len(schedules[0].rounds)} rounds, "
                f"rank {rank} lists {len(schedule.rounds)}"
            )
        for index, step in enumerate(schedule.rounds):
            peers = [send.peer for send in step.sends] + [recv.peer for recv in step.recvs]
            for peer in peers:
                if peer == rank or not 0 <= peer < size:
                    raise ScheduleError(
                        f"round {index}: rank {rank} speaks with rank {peer}, "
                        f"which is no other rank of {size}"
                    )
    return [
        Replica(rank, schedule, given[rank], outputs[rank], reduce)
        for rank, schedule in enumerate(schedules)
    ]


def _format_span(span: Span) -> str:
    return f"{span.area.value}[{span.start}:{span.stop}]"


def _make_mask(length: int) -> npt.NDArray[np.bool_]:
    return np.ones(length, np.bool_)
