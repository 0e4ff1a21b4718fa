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
    """Choose ranks to explain every pair; return the unreached ranks of each.

    Ranks in the most pairs come first, and the higher rank of a tie.
    """
    left = set(pairs)
    blamed: dict[int, list[int]] = {}
    while left:
        counts = Counter(rank for pair in left for rank in pair)
        worst = max(counts, key=lambda rank: (counts[rank], rank))
        mine = {pair for pair in left if worst in pair}
        blamed[worst] = sorted(rank for pair in mine for rank in pair if rank != worst)
        left -= mine
    return dict(sorted(blamed.items()))


class BrokenLinkReports:
    """Reports of broken links by pairs, until announced."""

    def __init__(self) -> None:
        self._open: dict[Pair, str] = {}
        self._announced: set[Pair] = set()

    def add(self, one: int, other: int, reason: str) -> bool:
        """Add a report; return whether the pair is new."""
        pair = order_pair(one, other)
        if pair in self._announced or pair in self._open:
            return False
        self._open[pair] = reason
        return True

    def discard(self, pair: Pair) -> None:
        """Drop the report of an unannounced pair, if any."""
        self._open.pop(pair, None)

    def is_announced(self, pair: Pair) -> bool:
        return pair in self._announced

    def drop_ranks(self, gone: Iterable[int]) -> None:
        """Drop reports on departed ranks: the departure explains the reports."""
        left = set(gone)
        self._open = {pair: why for pair, why in self._open.items() if left.isdisjoint(pair)}

    @property
    def open_pairs(self) -> list[Pair]:
        return sorted(self._open)

    def announce(self, ruled: Iterable[Pair]) -> dict[Pair, str]:
        """Close the reports of these pairs; return the reason of each."""
        reasons = {pair: self._open.pop(pair) for pair in ruled}
        self._announced |= reasons.keys()
        return reasons

    def note_announced(self, pairs: Iterable[Pair]) -> None:
        """Note pairs as announced; their reports are closed. Idempotent."""
        for pair in pairs:
            self._announced.add(pair)
            self._open.pop(pair, None)
