"""Members that are alive and cannot reach one another: whose fault that is said to be.

A link has two ends, and neither knows which of them it is that others cannot reach either.
"""

from collections import Counter
from collections.abc import Iterable

Pair = tuple[int, int]
"""Two ranks, the lower one first."""


def order_pair(one: int, other: int) -> Pair:
    return (one, other) if one < other else (other, one)


def choose_culprits(pairs: Iterable[Pair]) -> dict[int, list[int]]:
    """Choose ranks that have to do with every pair; return for each whom it does not reach.

    Who is in the most pairs comes first, of a pair the higher rank.
    """
    left = set(pairs)
    blamed: dict[int, list[int]] = {}
    while left:
        counts = Counter(rank for both in left for rank in both)
        worst = max(counts, key=lambda rank: (counts[rank], rank))
        mine = {both for both in left if worst in both}
        blamed[worst] = sorted(rank for both in mine for rank in both if rank != worst)
        left -= mine
    return dict(sorted(blamed.items()))


class BrokenLinkReports:
    """Links that broke, by pairs, until it is ruled what that means."""

    def __init__(self) -> None:
        self._open: dict[Pair, str] = {}
        self._announced: set[Pair] = set()

    def add(self, one: int, other: int, reason: str) -> bool:
        """Take in a broken link; say whether it is news."""
        both = order_pair(one, other)
        if both in self._announced or both in self._open:
            return False
        self._open[both] = reason
        return True

    def discard(self, both: Pair) -> None:
        """Forget the complaint about a pair that is not ruled on yet, if there is one."""
        self._open.pop(both, None)

    def is_announced(self, both: Pair) -> bool:
        return both in self._announced

    def drop_ranks(self, gone: Iterable[int]) -> None:
        """Forget links of ranks that are gone: that explains them."""
        left = set(gone)
        self._open = {both: why for both, why in self._open.items() if left.isdisjoint(both)}

    @property
    def open_pairs(self) -> list[Pair]:
        return sorted(self._open)

    def announce(self, ruled: Iterable[Pair]) -> dict[Pair, str]:
        """Close the complaints about these pairs; return their reasons."""
        reasons = {both: self._open.pop(both) for both in ruled}
        self._announced |= reasons.keys()
        return reasons
