"""Clock offsets and lateness of a world's members, from heartbeats."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from allhands_proto.statuses import GroupStatus, GroupWaits, LatenessStatus
from allhands_server.machine.limits import LATEST_CLOCK
from allhands_server.machine.member_messages import Heartbeat
from allhands_server.machine.values import CallArrival, MemberView
from allhands_server.machine.world.clock_sync import ClockSync
from allhands_server.machine.world.groups import Groups
from allhands_server.machine.world.lateness import LatenessTracker
from allhands_server.machine.world.member import NEVER, Member
from allhands_server.machine.world.wait_history import WaitHistory

_SKEW_GROUPS = 4
_OFFSETS_SECONDS = 5.0
"""How long the clock offsets serve that waits are measured with."""
_STARTS_A_SECOND = 20_000
"""Starts of calls that go into the history of waits; more calls are left out."""


class CallTimes:
    """Clock of each member and start times of calls; `members` and `groups` are the world's."""

    def __init__(self, members: Mapping[int, Member], groups: Groups) -> None:
        self._members = members
        self._groups = groups
        self._clock_sync = ClockSync()
        self._lateness = LatenessTracker()
        self._history = WaitHistory()
        self._offsets: Mapping[int, float] = {}
        self._offsets_at = self._measured_at = NEVER
        self._measured_starts = 0
        """In the second since `_measured_at`."""

    def add_heartbeat(self, member: Member, beat: Heartbeat, now: float) -> None:
        """Add a sample of the member's clock and the starts of the member's calls."""
        if not 0 < beat.sent_at < LATEST_CLOCK:
            return
        self._clock_sync.add_sample(member.rank, member.join.host, beat.sent_at, now)
        for one in beat.call_starts:
            if self._groups.has_rank(one.group, member.rank):
                size = self._groups.count_ranks(one.group)
                whole = self._lateness.add_starts(one.group, member.rank, one.calls, size)
                if whole:
                    self._add_waits(one.group, whole, now)

    def _add_waits(self, group: str, calls: Sequence[Mapping[int, float]], now: float) -> None:
        """Add calls whose starts are known from all ranks to the history, as far as time allows."""
        if now >= self._measured_at + 1.0:
            self._measured_at, self._measured_starts = now, 0
        for starts in calls:
            if self._measured_starts >= _STARTS_A_SECOND:
                return
            # A rank that has sent starts has sent its clock too, perhaps since the last estimate.
            is_one_new = not starts.keys() <= self._offsets.keys()
            if is_one_new or now >= self._offsets_at + _OFFSETS_SECONDS:
                self._offsets_at, self._offsets = now, self._clock_sync.estimate_all()
            self._measured_starts += len(starts)
            on_one_clock = {rank: at + self._offsets[rank] for rank, at in starts.items()}
            self._history.add_call(group, on_one_clock, now)

    def describe_waits(self, now: float, seconds: float) -> tuple[GroupWaits, ...]:
        """Describe who waited for whom, with the periods of the last `seconds`."""
        return self._history.describe(now, seconds)

    def forget_group(self, group: str) -> None:
        self._lateness.forget(group)

    def describe_members(self, now: float) -> tuple[MemberView, ...]:
        """Describe all members by rank, with clock offset and lateness."""
        late: dict[int, list[LatenessStatus]] = {}
        for group in self._groups.describe():
            ranks = self._list_present(group)
            measured = self._lateness.measure(group.group, ranks, self._estimate_offset)
            for rank, lateness in measured.items():
                late.setdefault(rank, []).append(lateness)
        return tuple(
            replace(
                member.describe(now),
                clock_offset=self._estimate_offset(rank),
                lateness=tuple(late.get(rank, ())),
            )
            for rank, member in sorted(self._members.items())
        )

    def measure_skew(self) -> tuple[float, float] | None:
        """Return median and maximum of the seconds between the first and the last start of calls.

        Of the latest calls of the largest groups; None: none is known from all of its ranks.
        """
        spans: list[float] = []
        for group in self._list_largest():
            ranks = self._list_present(group)
            spans += self._lateness.list_spans(group.group, ranks, self._estimate_offset)
        if not spans:
            return None
        spans.sort()
        return spans[len(spans) // 2], spans[-1]

    def list_arrivals(self) -> tuple[CallArrival, ...]:
        """Return the arrivals at the latest calls of the largest groups, by group and in order."""
        return tuple(
            arrival
            for group in self._list_largest()
            for arrival in self._lateness.list_arrivals(
                group.group, self._list_present(group), self._estimate_offset
            )
        )

    def _list_largest(self) -> list[GroupStatus]:
        found = sorted(self._groups.describe(), key=lambda group: -len(group.ranks))
        return found[:_SKEW_GROUPS]

    def _list_present(self, group: GroupStatus) -> list[int]:
        return [
            rank for rank in group.ranks if rank in self._members and self._members[rank].is_present
        ]

    def _estimate_offset(self, rank: int) -> float | None:
        """Return seconds to add to a member's clock for the coordinator's; None: unknown."""
        return self._clock_sync.estimate_offset(rank, self._members[rank].join.host)
