"""Calls of groups which some ranks have been in for long, while others have not begun them."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from allhands.coordinator.sections import format_duration, name_ranks
from allhands.escapes import escape_line
from allhands_proto.quick_dataclass import dataclass
from allhands_proto.statuses import GroupStatus, OperationStatus

STALL_SECONDS = 2.0
"""A call for which a rank is missing this long is shown as a stall."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A call of a group which some ranks are in, and others have not begun."""

    group: str
    operation: str
    sequence: int
    seconds: float
    """Since the first rank has been in it."""
    missing: tuple[int, ...]
    """Ranks of the world."""


class Member(Protocol):
    """A member of a job with its progress in each group."""

    @property
    def rank(self) -> int:
        """Its rank in the world."""
        ...

    @property
    def state(self) -> str:
        """`joined`, `lost` or `left`."""
        ...

    def find_operation(self, group: str) -> OperationStatus | None:
        """Return its progress in a group; None: it has made no call there."""
        ...


def count_calls(members: Iterable[Member], group: str) -> int:
    """Return the number of the latest call that any rank has begun in a group; 0: none."""
    found = (member.find_operation(group) for member in members)
    return max((one.sequence for one in found if one is not None), default=0)


def find_stall(members: Sequence[Member], group: GroupStatus) -> Stall | None:
    """Return the latest call of a group which ranks have been in for long, while others miss.

    Ranks that were lost or left are missing too; messages between two ranks are not looked at.
    """
    latest = count_calls(members, group.group)
    by_rank = {member.rank: member for member in members}
    inside: list[OperationStatus] = []
    missing: list[int] = []
    for rank in group.ranks:
        member = by_rank.get(rank)
        now = member.find_operation(group.group) if member else None
        if now is None or now.sequence < latest:
            missing.append(rank)
        elif now.operation and member is not None and member.state == "joined":
            inside.append(now)
    waited = max((one.elapsed for one in inside), default=0.0)
    if not latest or not missing or waited < STALL_SECONDS:
        return None
    return Stall(group.group, inside[0].operation, latest, waited, tuple(missing))


def list_stalls(members: Sequence[Member], groups: Sequence[GroupStatus]) -> list[Stall]:
    """Return the stalls of a job's groups, the longest first."""
    found = [stall for group in groups if (stall := find_stall(members, group)) is not None]
    return sorted(found, key=lambda stall: -stall.seconds)


def describe_stall(stall: Stall) -> str:
    """Describe a stall in a line: the missing ranks first."""
    ranks = name_ranks(sorted(stall.missing))
    where = f"{stall.operation} #{stall.sequence} of group {escape_line(stall.group)}"
    return f"{ranks} missing for {format_duration(stall.seconds)} in {where}"
