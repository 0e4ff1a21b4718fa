"""NonMember: a group that this rank is not in."""

from typing import ClassVar

from allhands.engine.numbering import CallNumbering
from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class NonMember:
    """Result of `new_group` on ranks outside the new group."""

    name: str
    ranks: tuple[int, ...] = ()
    """Of the world, in the order of the group."""
    order: ClassVar[CallNumbering] = CallNumbering()
    """Of calls that are never made."""
