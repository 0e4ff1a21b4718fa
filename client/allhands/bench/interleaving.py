"""Order, count and statistics of trials. Pure."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from allhands.bench.case import BenchCase

T = TypeVar("T")

MIN_ROUNDS = 5
MAX_ROUNDS = 100
_MIN_SLOW_ROUNDS = 3
_SLOW_BUDGETS = 3
"""Who takes so many times the budget gets the fewest rounds of all."""
_MAX_TRIAL = 0.03
_MIN_TRIAL = 0.004
_BATCH = 0.001
"""Seconds of a batch: short, so that what disturbs one leaves others alone."""
_MIN_BATCH_CALLS = 10
"""Of a batch, if they fit: where ranks share cores, the start of a row takes longer than a call."""
_MAX_BATCH = 0.2
"""Seconds."""
_WARM_UP = 0.01
"""Seconds: ranks that have just woken may share a core until the system spreads them."""
_MAX_CALLS = 5000
_MAX_SINGLE_CALLS = 200
_NO_WARM_UP_FROM = 16 << 20


def rotate(names: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """Give the order of every round: each contender comes first, and after each, in its turn."""
    start = 0
    while names:
        yield (*names[start:], *names[:start])
        start = (start + 1) % len(names)


@dataclass(frozen=True, slots=True)
class Trial:
    """Call counts of one trial of a system."""

    warm: int
    """Calls that are not timed; the others ran meanwhile."""
    batches: int
    calls: int
    """Calls of each batch."""

    @classmethod
    def plan(cls, case: BenchCase, typical: float, budget: float) -> "Trial":
        """Choose call counts that fit all trials of a system in this case into `budget` seconds.

        `typical` is the duration of a call in seconds; infinite before the first.
        """
        seconds = min(max(budget / (2 * MIN_ROUNDS), _MIN_TRIAL), _MAX_TRIAL)
        typical = max(typical, 1e-9)
        if case.is_rewritten:
            calls = min(max(int(seconds / typical), 1), _MAX_SINGLE_CALLS)
            warm = min(max(int(_WARM_UP / typical), 1), _MAX_SINGLE_CALLS)
            return cls(0 if case.nbytes * case.arrays >= _NO_WARM_UP_FROM else warm, 1, calls)
        least = min(max(int(_MAX_BATCH / typical), 1), _MIN_BATCH_CALLS)
        calls = min(max(int(_BATCH / typical), least), _MAX_CALLS)
        warm = min(max(int(_WARM_UP / typical), 1), _MAX_CALLS)
        return cls(warm, max(int(seconds / max(typical * calls, _BATCH)), 1), calls)


def is_enough(rounds: int, spent: float, budget: float) -> bool:
    """Say whether to stop after so many rounds and seconds."""
    if rounds >= MIN_ROUNDS:
        return spent >= budget or rounds >= MAX_ROUNDS
    return rounds >= _MIN_SLOW_ROUNDS and spent >= _SLOW_BUDGETS * budget


def take_slowest(times_by_rank: Sequence[Sequence[float]]) -> list[float]:
    """Return for each call the time of the slowest rank."""
    taking_part = [times for times in times_by_rank if times]
    return [max(each) for each in zip(*taking_part, strict=True)]


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics of a series of times, in seconds."""

    median: float
    low: float
    """A tenth of the times were shorter."""
    high: float
    """A tenth of the times were longer."""
    samples: int

    @classmethod
    def from_times(cls, times: Sequence[float]) -> "Summary":
        if len(times) == 1:
            return cls(times[0], times[0], times[0], 1)
        tenths = statistics.quantiles(times, n=10, method="inclusive")
        return cls(statistics.median(times), tenths[0], tenths[-1], len(times))
