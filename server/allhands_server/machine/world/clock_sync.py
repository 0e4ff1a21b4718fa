"""Estimation of the offsets between members' clocks and the coordinator's.

Clocks of different hosts count from different times. Arrival time by the coordinator's clock minus
sending time by the member's is the offset plus the delay of the message. So the least difference
of the latest messages is the best estimate, too large by the shortest delay.
"""

from bisect import bisect_left
from collections import deque

WINDOW = 32
"""Number of samples kept: clocks drift."""
ONE_CLOCK = 0.05
"""Seconds: clocks of one host closer than this are the same clock."""


class ClockSync:
    """Clock samples of one world's members, by rank."""

    def __init__(self) -> None:
        self._differences: dict[int, deque[float]] = {}
        self._hosts: dict[str, set[int]] = {}

    def add_sample(self, rank: int, host: str, sent: float, now: float) -> None:
        """Add the arrival of a message sent at `sent` by the member's clock."""
        if rank not in self._differences:
            self._differences[rank] = deque(maxlen=WINDOW)
            self._hosts.setdefault(host, set()).add(rank)
        self._differences[rank].append(now - sent)

    def estimate_all(self) -> dict[int, float]:
        """Return what `estimate_offset` does, for all ranks with samples."""
        found: dict[int, float] = {}
        for ranks in self._hosts.values():
            least = {rank: min(self._differences[rank]) for rank in ranks}
            ordered = sorted(least.values())
            for rank, own in least.items():
                found[rank] = ordered[bisect_left(ordered, own - ONE_CLOCK)]
        return found

    def estimate_offset(self, rank: int, host: str) -> float | None:
        """Return seconds to add to a member's clock for the coordinator's; None: unknown."""
        if rank not in self._differences:
            return None
        own = min(self._differences[rank])
        # A host may have several, in containers that were given clocks of their own.
        beside = (min(self._differences[one]) for one in self._hosts[host])
        return min(one for one in beside if abs(one - own) <= ONE_CLOCK)
