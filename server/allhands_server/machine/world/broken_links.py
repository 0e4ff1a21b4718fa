"""Broken links between living members, and the choice of culprits.

A link has two ends; which of them is cut off shows only together with other links.
"""

from collections import Counter
from collections.abc import Iterable

Pair = tuple[int, int]
"""Two ranks, the lower one first."""


def order_pair(one: int, other: int) -> Pair:
    return (one, other) if one < other else (other, one)


def choose_culprits(pairs: Iterable[Pair]) -> dict[int, list[int]]:
    """Choose ranks that explain every pair; return the unreached ranks of each.

    Ranks in the most pairs come first, and the higher rank of a tie.
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
    """Reports of broken links by pairs, until announced."""

    def __init__(self) -> None:
        self._open: dict[Pair, str] = {}
        self._announced: set[Pair] = set()

    def add(self, one: int, other: int, reason: str) -> bool:
        """Add a report; return whether the pair is new."""
        both = order_pair(one, other)
        if both in self._announced or both in self._open:
            return False
        self._open[both] = reason
        return True

    def discard(self, both: Pair) -> None:
        """Drop the report of a pair that is not announced yet, if any."""
        self._open.pop(both, None)

    def is_announced(self, both: Pair) -> bool:
        return both in self._announced

    def drop_ranks(self, gone: Iterable[int]) -> None:
        """Drop reports on departed ranks, whose departure explains them."""
        left = set(gone)
        self._open = {both: why for both, why in self._open.items() if left.isdisjoint(both)}

    @property
    def open_pairs(self) -> list[Pair]:
        return sorted(self._open)

    def announce(self, ruled: Iterable[Pair]) -> dict[Pair, str]:
        """Close the reports of these pairs; return the reason of each."""
        reasons = {both: self._open.pop(both) for both in ruled}
        self._announced |= reasons.keys()
        return reasons
