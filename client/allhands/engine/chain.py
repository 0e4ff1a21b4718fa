"""Calls made of several movements, of which later ones depend on what earlier ones brought.

The steps of a chain are a generator: it yields one collective after the other, on arrays of its
own, computes between them what it likes, and returns what the call gives; it runs on a thread
beside the loop. All steps are one call of the group and have its number. The first is made as if it
was the whole call, so that ranks which called something else are found; from then on all ranks are
in the same chain.

What callers gave is written when all steps have ended, and at no other time: a chain that fails
leaves its outputs as they were.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from allhands.algorithms.cost import Wire
from allhands.engine import foreign
from allhands.engine.buffer import Array
from allhands.engine.call import Call
from allhands.engine.collectives import Build, Collectives, Timeout
from allhands.engine.executor import Part
from allhands.engine.native import Native
from allhands.engine.work import Result


@dataclass(frozen=True, slots=True)
class Movement:
    """One collective that a chain waits for."""

    native: Native
    build: Build
    instead: foreign.Some | None = None
    """What it is made of, where that is several."""


Steps: TypeAlias = Generator[Movement, None, Result]


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
        return Movement(native, _no_parts, foreign.movements(self, native))


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
        self._several: foreign.Some | None = None
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
        yield from foreign.movements(moves, native)
        return result

    return Chain(native.call, steps, native.targets)


def _no_parts(rank: int, size: int) -> list[Part]:
    return []
