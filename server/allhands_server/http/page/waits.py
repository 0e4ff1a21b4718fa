"""Waits of ranks for other ranks, from the progress that heartbeats tell. Pure."""

from collections.abc import Mapping, Sequence

from allhands_proto.quick_dataclass import dataclass
from allhands_proto.statuses import GroupStatus
from allhands_server.machine.values import MemberView, Presence, Progress

WAIT_SECONDS = 2.0
"""In a call for so long, a rank waits for those that have not begun it. Heartbeats come each second
at different times, so for less than that two ranks in one call may seem to be in two."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A call that some ranks of a group are in, and that others have not begun."""

    group: str
    sequence: int
    operation: str
    seconds: float
    """For which the first of them has been in it."""
    waiting: tuple[int, ...]
    missing: tuple[int, ...]


def find_waits(members: Sequence[MemberView], groups: Sequence[GroupStatus]) -> list[Wait]:
    """Return the waits of all groups, the longest first."""
    by_rank = {one.rank: one for one in members}
    by_group: dict[str, dict[int, Progress]] = {}
    for member in members:
        for one in member.progress:
            by_group.setdefault(one.group, {})[member.rank] = one
    found: list[Wait] = []
    for group in groups:
        found += _find_waits_of(group, by_group.get(group.group, {}), by_rank)
    return sorted(found, key=lambda one: -one.seconds)


def _find_waits_of(
    group: GroupStatus, progress: Mapping[int, Progress], members: Mapping[int, MemberView]
) -> list[Wait]:
    by_call: dict[tuple[int, str], list[int]] = {}
    for rank, one in progress.items():
        is_waiting = one.operation and one.elapsed >= WAIT_SECONDS
        if is_waiting and rank in members and members[rank].presence is Presence.JOINED:
            by_call.setdefault((one.sequence, one.operation), []).append(rank)
    found = []
    for (sequence, operation), waiting in by_call.items():
        missing = {rank for rank in group.ranks if _get_sequence(progress, rank) < sequence}.union(
            *(progress[rank].unanswered_pings for rank in waiting)
        )
        if missing:
            seconds = max(progress[rank].elapsed for rank in waiting)
            ranks = tuple(sorted(waiting)), tuple(sorted(missing))
            found.append(Wait(group.group, sequence, operation, seconds, *ranks))
    return found


def _get_sequence(progress: Mapping[int, Progress], rank: int) -> int:
    return progress[rank].sequence if rank in progress else 0
