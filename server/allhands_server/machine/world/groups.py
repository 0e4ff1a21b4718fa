"""Groups opened by the members of a world."""

from collections.abc import Collection

from allhands_proto.statuses import GroupStatus
from allhands_server.machine.memory_use import refuse_count


class Groups:
    """Groups by name; the first opening fixes a group's ranks."""

    def __init__(self) -> None:
        self._ranks: dict[str, tuple[int, ...]] = {}
        self._sorted: dict[str, tuple[int, ...]] = {}
        self._members: dict[str, frozenset[int]] = {}
        self._openers: dict[str, set[int]] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def check_room(self, group: str, most: int, job: str) -> None:
        """Refuse a new group where there are as many as there may be; 0: any number."""
        if most and group not in self._ranks and (count := len(self._ranks)) >= most:
            remedy = "destroy those that nobody needs"
            raise refuse_count(job, count, "groups", "job-groups", remedy)

    def open(self, group: str, ranks: tuple[int, ...], opening_rank: int) -> None:
        if group not in self._ranks:
            self._ranks[group], self._members[group] = ranks, frozenset(ranks)
            self._sorted[group] = tuple(sorted(self._members[group]))
        self._openers.setdefault(group, set()).add(opening_rank)

    def close(self, group: str, closing_rank: int, present: Collection[int]) -> None:
        """Close a group for a rank; forget the group with the last present rank."""
        openers = self._openers.get(group, set())
        openers.discard(closing_rank)
        if openers.isdisjoint(present):
            for table in (self._ranks, self._sorted, self._members, self._openers):
                table.pop(group, None)

    def get_ranks(self, group: str) -> tuple[int, ...] | None:
        return self._ranks.get(group)

    def get_sorted_ranks(self, group: str) -> tuple[int, ...] | None:
        return self._sorted.get(group)

    def has_rank(self, group: str, rank: int) -> bool:
        """Whether a rank is in an open group."""
        return rank in self._members.get(group, ())

    def count_ranks(self, group: str) -> int:
        """Return the number of ranks of an open group; 0: it is not open."""
        return len(self._members.get(group, ()))

    def get_openers(self, group: str) -> Collection[int]:
        """Return the ranks that have a group open."""
        return self._openers.get(group, ())

    def list_openings(self) -> list[tuple[str, tuple[int, ...], int]]:
        """Return group, ranks and opening rank of each opening, ranks once for each group."""
        return [
            (group, ranks if place == 0 else (), opener)
            for group, ranks in self._ranks.items()
            for place, opener in enumerate(sorted(self._openers[group]))
        ]

    def list_groups_of(self, rank: int) -> list[tuple[str, tuple[int, ...]]]:
        """Return the groups of a world rank, with all ranks of each."""
        return [
            (group, ranks) for group, ranks in self._ranks.items() if self.has_rank(group, rank)
        ]

    def describe(self) -> tuple[GroupStatus, ...]:
        return tuple(GroupStatus(group, ranks) for group, ranks in sorted(self._ranks.items()))
