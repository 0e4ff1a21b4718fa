"""Groups of ranks of the world, and what can be made of them."""

from collections.abc import Sequence
from typing import Any, Self

from allhands.mpi import errors
from allhands.mpi.constants import (
    ERR_ARG,
    ERR_GROUP,
    ERR_RANK,
    IDENT,
    PROC_NULL,
    SIMILAR,
    UNDEFINED,
    UNEQUAL,
)
from allhands.mpi.handles import Handle
from allhands.mpi.runtime import runtime


class Group(Handle):
    """An ordered set of processes; null: none at all."""

    _members: tuple[int, ...] | None

    def __new__(cls, group: "Group | None" = None) -> Self:
        self = super().__new__(cls, group)
        if group is None:
            self._members = None
        return self

    @classmethod
    def _of(cls, ranks: Sequence[int]) -> Self:
        """Return the group of ranks of the world."""
        self = cls.__new__(cls)
        self._members = tuple(ranks)
        return self

    def _identity(self) -> object:
        members = self._members
        return members if members is None or not members else (id(members), *members)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of the world, by ranks of the group."""
        if self._members is None:
            raise errors.make_error(ERR_GROUP, "the group is null")
        return self._members

    def Get_size(self) -> int:
        """Return the number of processes."""
        return len(self.ranks)

    def Get_rank(self) -> int:
        """Return the rank of this process; UNDEFINED: it is no member."""
        own = runtime.engine.rank
        return self.ranks.index(own) if own in self.ranks else UNDEFINED

    size = property(Get_size, doc="Number of processes.")
    rank = property(Get_rank, doc="Rank of this process.")

    def Translate_ranks(
        self, ranks: Sequence[int] | None = None, group: "Group | None" = None
    ) -> list[int]:
        """Return the ranks in another group of this group's ranks, all by default.

        UNDEFINED: that has no such process. Without a group: the world.
        """
        chosen = range(len(self.ranks)) if ranks is None else ranks
        other = range(runtime.engine.size) if group is None else group.ranks
        found = []
        for rank in chosen:
            if rank == PROC_NULL:
                found.append(PROC_NULL)
                continue
            member = self.ranks[self._check(rank)]
            found.append(other.index(member) if member in other else UNDEFINED)
        return found

    def Compare(self, group: "Group") -> int:
        """Return IDENT, SIMILAR (another order), or UNEQUAL."""
        if self.ranks == group.ranks:
            return IDENT
        return SIMILAR if set(self.ranks) == set(group.ranks) else UNEQUAL

    def Dup(self) -> Self:
        """Return a group of the same processes."""
        return self._of(list(self.ranks))

    @classmethod
    def Union(cls, group1: "Group", group2: "Group") -> Self:
        """Return the processes of the first group, then those that only the second has."""
        return cls._of(tuple(dict.fromkeys((*group1.ranks, *group2.ranks))))

    @classmethod
    def Intersection(cls, group1: "Group", group2: "Group") -> Self:
        """Return the processes of both, in the order of the first."""
        return cls._of([rank for rank in group1.ranks if rank in group2.ranks])

    @classmethod
    def Difference(cls, group1: "Group", group2: "Group") -> Self:
        """Return the processes that only the first group has."""
        return cls._of([rank for rank in group1.ranks if rank not in group2.ranks])

    def Incl(self, ranks: Sequence[int]) -> Self:
        """Return the processes with those ranks, in that order."""
        if len(set(ranks)) != len(ranks):
            raise errors.make_error(ERR_RANK, f"a rank is given twice: {list(ranks)}")
        return self._of([self.ranks[self._check(rank)] for rank in ranks])

    def Excl(self, ranks: Sequence[int]) -> Self:
        """Return the processes without those ranks."""
        excluded = {self.ranks[self._check(rank)] for rank in ranks}
        return self._of([rank for rank in self.ranks if rank not in excluded])

    def Range_incl(self, ranks: Sequence[tuple[int, int, int]]) -> Self:
        """Return the processes of ranges of ranks: first, last inclusive, step."""
        return self.Incl(_expand(ranks))

    def Range_excl(self, ranks: Sequence[tuple[int, int, int]]) -> Self:
        """Return the processes without ranges of ranks: first, last inclusive, step."""
        return self.Excl(_expand(ranks))

    @classmethod
    def Create_from_session_pset(cls, session: Any, pset_name: str) -> "Group":
        """Return the processes of a set of a session."""
        group: Group = session.Create_group(pset_name)
        return group

    def Free(self) -> None:
        """Make the handle null."""
        if self._members is None:
            raise errors.make_error(ERR_GROUP, "a null group cannot be freed")
        if not self._is_constant:
            self._make_null()

    def _check(self, rank: int) -> int:
        if not 0 <= rank < len(self.ranks):
            raise errors.make_error(
                ERR_RANK, f"rank {rank} is not in the group, which has {len(self.ranks)}"
            )
        return rank


def _expand(ranges: Sequence[tuple[int, int, int]]) -> list[int]:
    ranks: list[int] = []
    for first, last, step in ranges:
        if step == 0:
            raise errors.make_error(ERR_ARG, "the step of a range is 0")
        ranks += range(first, last + (1 if step > 0 else -1), step)
    return ranks


GROUP_NULL = Group()._name_constant("GROUP_NULL")
"""The null group."""
GROUP_EMPTY = Group._of(())._name_constant("GROUP_EMPTY")
"""The group without processes."""
