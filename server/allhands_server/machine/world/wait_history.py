"""Waits for late ranks over hours: who began calls last, and for how long the others waited.

A rank that begins a call waits until the last one does. So the rank that waits least is the late
one. Of each group a bucket a minute for an hour, and a quarter of an hour for a day, with the ranks
that were waited for most; sums over the whole run for every rank.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import field

from allhands_proto.quick_dataclass import dataclass
from allhands_proto.statuses import GroupWaits, RankWaits, WaitPeriod

MINUTE = 60.0
QUARTER = 15 * MINUTE
MINUTES_KEPT = 60
QUARTERS_KEPT = 96
CULPRITS_KEPT = 4
"""Ranks of one bucket: those that the others waited for most."""
GROUPS_KEPT = 8
"""Groups of a world: the first ones in which calls were measured."""


@dataclass(slots=True)
class _RankSums:
    last: int = 0
    """Calls that it began last of all."""
    caused: float = 0.0
    """Seconds that another rank waited for it, on average."""
    waited: float = 0.0
    """Seconds that it waited for others."""


@dataclass(slots=True)
class _Bucket:
    """Calls that began within one length of time."""

    start: float
    length: float
    calls: int = 0
    skew: float = 0.0
    """Sum of the seconds from the first start to the last one."""
    worst: float = 0.0
    late: dict[int, _RankSums] = field(default_factory=dict)

    def merge(self, other: "_Bucket") -> None:
        self.calls += other.calls
        self.skew += other.skew
        self.worst = max(self.worst, other.worst)
        for rank, sums in other.late.items():
            mine = self.late.setdefault(rank, _RankSums())
            mine.last += sums.last
            mine.caused += sums.caused
        self.keep_culprits()

    def keep_culprits(self) -> None:
        if len(self.late) > CULPRITS_KEPT:
            most = sorted(self.late, key=lambda rank: -self.late[rank].caused)[:CULPRITS_KEPT]
            self.late = {rank: self.late[rank] for rank in most}


class _GroupHistory:
    """Waits of one group."""

    def __init__(self, first: float) -> None:
        """`first` is when the first call was measured."""
        self.calls = 0
        self._first = first
        self._ranks: dict[int, _RankSums] = {}
        self._minutes: deque[_Bucket] = deque()
        self._quarters: deque[_Bucket] = deque(maxlen=QUARTERS_KEPT)

    def add_call(self, starts: Mapping[int, float], now: float) -> None:
        last = max(starts, key=lambda rank: starts[rank])
        end = starts[last]
        total = 0.0
        for rank, at in starts.items():
            self._ranks.setdefault(rank, _RankSums()).waited += end - at
            total += end - at
        caused = total / (len(starts) - 1)
        bucket = self._find_bucket(now)
        skew = end - min(starts.values())
        self.calls += 1
        bucket.calls += 1
        bucket.skew += skew
        bucket.worst = max(bucket.worst, skew)
        for sums in (self._ranks[last], bucket.late.setdefault(last, _RankSums())):
            sums.last += 1
            sums.caused += caused

    def _find_bucket(self, now: float) -> _Bucket:
        start = now // MINUTE * MINUTE
        if not self._minutes or self._minutes[-1].start < start:
            if self._minutes:
                self._minutes[-1].keep_culprits()
            self._minutes.append(_Bucket(start, MINUTE))
            while self._minutes[0].start <= start - MINUTES_KEPT * MINUTE:
                self._retire(self._minutes.popleft())
        return self._minutes[-1]

    def _retire(self, minute: _Bucket) -> None:
        start = minute.start // QUARTER * QUARTER
        if not self._quarters or self._quarters[-1].start < start:
            self._quarters.append(_Bucket(start, QUARTER))
        self._quarters[-1].merge(minute)

    def describe(self, group: str, now: float, seconds: float) -> GroupWaits:
        periods = tuple(
            WaitPeriod(
                ago=max(0.0, now - max(one.start, self._first)),
                length=one.length,
                calls=one.calls,
                skew=one.skew,
                worst=one.worst,
                late=_describe_ranks(one.late),
            )
            for one in (*self._quarters, *self._minutes)
            if now - one.start - one.length < seconds
        )
        return GroupWaits(group, self.calls, _describe_ranks(self._ranks), periods)


class WaitHistory:
    """Waits in the groups of one world."""

    def __init__(self) -> None:
        self._groups: dict[str, _GroupHistory] = {}

    def add_call(self, group: str, starts: Mapping[int, float], now: float) -> None:
        """Add a call with the start on each rank, at least two, in seconds of one clock."""
        if len(starts) < 2 or (group not in self._groups and len(self._groups) >= GROUPS_KEPT):
            return
        self._groups.setdefault(group, _GroupHistory(now)).add_call(starts, now)

    def describe(self, now: float, seconds: float) -> tuple[GroupWaits, ...]:
        """Describe each group, with the periods of the last `seconds`."""
        return tuple(
            history.describe(group, now, seconds) for group, history in sorted(self._groups.items())
        )


def _describe_ranks(ranks: Mapping[int, _RankSums]) -> tuple[RankWaits, ...]:
    """Describe ranks, those first for which the others waited most."""
    found = [RankWaits(rank, one.last, one.caused, one.waited) for rank, one in ranks.items()]
    return tuple(sorted(found, key=lambda one: (-one.caused, one.waited, one.rank)))
