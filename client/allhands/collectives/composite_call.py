"""Calls made of several movements, of which later ones depend on what earlier ones brought.

The steps of a chain are a generator: it yields one collective after the other, on arrays of its
own, computes between them what it likes, and returns what the call gives; it runs on a thread
beside the loop. All steps are one call of the group and have its number. The first is made as if it
was the whole call, so that ranks which called something else are found; from then on all ranks are
in the same chain.

What callers gave is written when all steps have ended, and at no other time: a chain that fails
leaves its outputs as they were.

A reduction with an operation that the native core does not know is such a call: every rank takes a
block of all ranks' arrays, folds it in the order of ranks, and gives it to those who want it: as
much as any all_reduce carries. A PREMUL_SUM of numbers that are not widened on the way is a SUM of
what was multiplied.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from allhands.collectives.algorithms.cost import Wire
from allhands.collectives.buffer import Array
from allhands.collectives.part import Part
from allhands.collectives.primitive import Build, Collectives, Timeout
from allhands.collectives.reduction import Premul, ReduceOp, fold, is_narrow, scaled
from allhands.collectives.request import Native
from allhands.collectives.signature import Call, Result


@dataclass(frozen=True, slots=True)
class Movement:
    """One collective that a chain waits for."""

    native: Native
    build: Build
    instead: "Some | None" = None
    """What it is made of, where that is several."""


Steps: TypeAlias = Generator[Movement, None, Result]
Some: TypeAlias = Generator[Movement, None, None]
"""Movements after which something is written."""


class Moves(Collectives[Movement]):
    """What a chain has for steps: the collectives of its group, which it yields."""

    def __init__(
        self, name: str, rank: int, size: int, deterministic: bool, wire: Wire | None
    ) -> None:
        self._name = name
        self._rank = rank
        self._size = size
        self._measured = wire
        self.deterministic = deterministic

    @property
    def name(self) -> str:
        return self._name

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    @property
    def _wire(self) -> Wire | None:
        return self._measured

    def _start(
        self, native: Native, build: Build, result: Result, timeout: Timeout, label: str | None
    ) -> Movement:
        return Movement(native, build)

    def _start_foreign(
        self, native: Native, result: Result, timeout: Timeout, label: str | None
    ) -> Movement:
        return Movement(native, _no_parts, _foreign_steps(self, native))


@dataclass(frozen=True, slots=True)
class Chain:
    """A call, and how its steps are made."""

    call: Call
    """What the others are told of it."""
    steps: Callable[[Moves], Steps]
    """Makes them, for a group as it is."""
    targets: Sequence[Array] = ()
    """What it writes of its caller's, at its end."""


class Running:
    """The steps of one call under way."""

    def __init__(self, chain: Chain, moves: Moves) -> None:
        self._steps = chain.steps(moves)
        self._several: Some | None = None
        self.result: Result = None
        """What the call gives, when its last step has ended."""
        self.is_over = False
        """Whether it has come to its end, and written what the caller gave."""

    def advance(self) -> Movement | None:
        """Return the next step, when the one before has ended; None: there is no other."""
        while True:
            if self._several is not None:
                if (step := next(self._several, None)) is not None:
                    return step
                self._several = None
            try:
                step = next(self._steps)
            except StopIteration as end:
                self.result, self.is_over = end.value, True
                return None
            if step.instead is None:
                return step
            self._several = step.instead


def foreign_chain(native: Native, result: Result) -> Chain:
    """Return a reduction that the native core does not know as a call of its own."""

    def steps(moves: Moves) -> Steps:
        yield from _foreign_steps(moves, native)
        return result

    return Chain(native.call, steps, native.targets)


def _no_parts(rank: int, size: int) -> list[Part]:
    return []


def _foreign_steps(moves: Moves, native: Native) -> Some:
    """Carry out a reduction that was checked."""
    assert native.op is not None
    match native.kind:
        case "all_reduce":
            yield from _all_reduce(moves, native.targets[0], native.op)
        case "reduce":
            target = native.targets[0] if native.targets else None
            yield from _reduce(moves, native.sources[0], target, native.root, native.op)
        case _:
            yield from _reduce_scatter(moves, native.sources, native.targets[0], native.op)


def _all_reduce(moves: Moves, array: Array, op: ReduceOp) -> Some:
    if (factor := _factor(op, array.dtype)) is not None:
        found = scaled(factor, array)
        yield moves.all_reduce(found)
    else:
        found = np.empty_like(array)
        block, parts = _room(moves, array)
        yield moves.all_to_all(parts, np.array_split(array, moves.size))
        fold(op, parts, block, moves.size)
        yield moves.all_to_all(np.array_split(found, moves.size), [block] * moves.size)
    array[...] = found


def _reduce(moves: Moves, source: Array, target: Array | None, root: int, op: ReduceOp) -> Some:
    if (factor := _factor(op, source.dtype)) is not None:
        found = scaled(factor, source)
        yield moves.reduce(found, root)
    else:
        found = np.empty_like(source if target is not None else source[:0])
        block, parts = _room(moves, source)
        yield moves.all_to_all(parts, np.array_split(source, moves.size))
        fold(op, parts, block, moves.size)
        nothing = block[:0]
        given = [block if rank == root else nothing for rank in range(moves.size)]
        yield moves.all_to_all(np.array_split(found, moves.size), given)
    if target is not None:
        target[...] = found


def _reduce_scatter(moves: Moves, sources: Sequence[Array], target: Array, op: ReduceOp) -> Some:
    found = np.empty_like(target)
    if (factor := _factor(op, target.dtype)) is not None:
        yield moves.reduce_scatter(found, [scaled(factor, source) for source in sources])
    else:
        parts = [np.empty_like(target) for _ in sources]
        yield moves.all_to_all(parts, list(sources))
        fold(op, parts, found, moves.size)
    target[...] = found


def _factor(op: ReduceOp, dtype: "np.dtype[np.generic]") -> int | float | None:
    """Return by what contributions may be multiplied before they are added up by others."""
    return op.value.factor if isinstance(op.value, Premul) and not is_narrow(dtype) else None


def _room(moves: Moves, array: Array) -> tuple[Array, list[Array]]:
    """Return memory for this rank's block of the result, and of all ranks' arrays."""
    length = np.array_split(array, moves.size)[moves.rank].size
    block, *parts = (np.empty(length, array.dtype) for _ in range(1 + moves.size))
    return block, parts
