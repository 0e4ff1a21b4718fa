"""Who is measured when, how often, and what the figures come to. Pure."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FEWEST_ROUNDS = 5
MOST_ROUNDS = 100
_FEWEST_SLOW_ROUNDS = 3
_SLOW_FROM_BUDGETS = 3
"""Who takes so many times the budget gets the fewest rounds of all."""
_LONGEST_TURN = 0.03
_SHORTEST_TURN = 0.004
_MOST_CALLS_IN_A_ROW = 2000
_MOST_CALLS_ONE_BY_ONE = 20


def rotations(contenders: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Give the order of every round: each contender comes first, and after each, in its turn."""
    start = 0
    while contenders:
        yield (*contenders[start:], *contenders[:start])
        start = (start + 1) % len(contenders)


def calls_in_turn(usual: float, budget: float, rewritten: bool) -> int:
    """Choose how many calls a contender makes in a turn, if it has so many seconds in all.

    `usual` is what a call takes, in seconds; infinite before the first.
    """
    turn = budget / (2 * FEWEST_ROUNDS)
    turn = min(max(turn, _SHORTEST_TURN), _LONGEST_TURN)
    most = _MOST_CALLS_ONE_BY_ONE if rewritten else _MOST_CALLS_IN_A_ROW
    return min(max(int(turn / max(usual, 1e-9)), 1), most)


def enough(rounds: int, spent: float, budget: float) -> bool:
    """Say whether to stop after so many rounds and seconds."""
    if rounds >= FEWEST_ROUNDS:
        return spent >= budget or rounds >= MOST_ROUNDS
    return rounds >= _FEWEST_SLOW_ROUNDS and spent >= _SLOW_FROM_BUDGETS * budget


def slowest(times_by_rank: Sequence[Sequence[float]]) -> list[float]:
    """Return each call's time: that of the rank for which it took longest."""
    taking_part = [times for times in times_by_rank if times]
    return [max(each) for each in zip(*taking_part, strict=True)]


@dataclass(frozen=True, slots=True)
class Summary:
    """What a series of times comes to, in seconds."""

    median: float
    low: float
    """A tenth of the times were shorter."""
    high: float
    """A tenth of the times were longer."""
    samples: int

    @classmethod
    def of(cls, times: Sequence[float]) -> "Summary":
        if len(times) == 1:
            return cls(times[0], times[0], times[0], 1)
        tenths = statistics.quantiles(times, n=10, method="inclusive")
        return cls(statistics.median(times), tenths[0], tenths[-1], len(times))
