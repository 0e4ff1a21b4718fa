"""Lateness of ranks at the calls of their groups, against the earliest of each call."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from allhands_proto.statuses import LatenessStatus
from allhands_server.machine.limits import LATEST_CLOCK
from allhands_server.machine.values import CallArrival

CALLS = 64
"""Calls of a group measured: the latest known from all ranks."""
SPANS = 16
"""Calls of a group whose skew is measured for metrics."""
_KEPT = 4 * CALLS
"""Calls kept, as ranks report at different times."""
MOST_TOLD = 64
"""Calls of one group in one heartbeat, at most."""


class LatenessTracker:
    """Start times of a world's calls, by the clocks of the members."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[int, dict[int, float]]] = {}

    def add_starts(
        self, group: str, rank: int, calls: Sequence[tuple[int, float]], size: int = 0
    ) -> list[Mapping[int, float]]:
        """Add a rank's start times of a group's calls.

        Returns the start times of each call that is now known from `size` ranks, and was not yet;
        0: of none.
        """
        table = self._groups.setdefault(group, {})
        whole: list[Mapping[int, float]] = []
        for sequence, at in calls[-MOST_TOLD:]:
            if 0 < at < LATEST_CLOCK:
                starts = table.setdefault(sequence, {})
                is_new = rank not in starts
                starts[rank] = at
                if is_new and len(starts) == size:
                    whole.append(starts)
        if len(table) > 2 * _KEPT:
            for sequence in sorted(table)[:-_KEPT]:
                del table[sequence]
        return whole

    def forget(self, group: str) -> None:
        """Forget a closed group."""
        self._groups.pop(group, None)

    def list_spans(
        self, group: str, ranks: Iterable[int], offset: Callable[[int], float | None]
    ) -> list[float]:
        """List the seconds from the first rank's start to the last one's, of the latest calls."""
        return [one.span for one in self.list_arrivals(group, ranks, offset, SPANS)]

    def list_arrivals(
        self,
        group: str,
        ranks: Iterable[int],
        offset: Callable[[int], float | None],
        most: int = CALLS,
    ) -> list[CallArrival]:
        """List the arrivals at the latest calls that are known from all ranks, in order."""
        clocks = {rank: offset(rank) for rank in ranks}
        table = self._groups.get(group, {})
        if len(clocks) < 2 or None in clocks.values():
            return []
        whole = [at for at in sorted(table) if table[at].keys() >= clocks.keys()][-most:]
        arrivals = []
        for sequence in whole:
            begun = {rank: table[sequence][rank] + (at or 0.0) for rank, at in clocks.items()}
            last = max(begun, key=lambda rank: begun[rank])
            first = min(begun.values())
            arrivals.append(CallArrival(group, sequence, first, begun[last] - first, last))
        return arrivals

    def measure(
        self, group: str, ranks: Iterable[int], offset: Callable[[int], float | None]
    ) -> dict[int, LatenessStatus]:
        """Return the lateness of each rank; empty without calls known from all ranks.

        `offset` returns the seconds to add to a rank's times.
        """
        clocks = {rank: offset(rank) for rank in ranks}
        table = self._groups.get(group, {})
        if len(clocks) < 2 or None in clocks.values():
            return {}
        whole = [at for at in sorted(table) if table[at].keys() >= clocks.keys()][-CALLS:]
        if not whole:
            return {}
        from statistics import median  # with decimals, which no rank needs before it is asked

        late: dict[int, list[float]] = {rank: [] for rank in clocks}
        last = dict.fromkeys(clocks, 0)
        for sequence in whole:
            begun = {rank: table[sequence][rank] + (clocks[rank] or 0.0) for rank in clocks}
            first = min(begun.values())
            for rank, at in begun.items():
                late[rank].append(at - first)
            last[max(begun, key=lambda rank: begun[rank])] += 1
        return {
            rank: LatenessStatus(group, len(whole), median(times), max(times), last[rank])
            for rank, times in late.items()
        }
