"""NonMember: a group that this rank is not in."""

from dataclasses import dataclass
from typing import ClassVar

from allhands.engine.numbering import CallNumbering


@dataclass(frozen=True, slots=True)
class NonMember:
    """Result of `new_group` on ranks outside the new group."""

    name: str
    ranks: tuple[int, ...] = ()
    """Of the world, in the order of the group."""
    order: ClassVar[CallNumbering] = CallNumbering()
    """Of calls that are never made."""
