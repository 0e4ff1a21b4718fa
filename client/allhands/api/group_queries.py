"""Queries of groups: ranks, tags, names, sequence numbers."""

from collections.abc import Sequence

from allhands.api.default_world import AnyGroup, require_world
from allhands.group.group import Group
from allhands.group.non_member import NonMember


def get_group_rank(group: AnyGroup, global_rank: int) -> int:
    """Return the rank in a group of a rank of the world; any rank may ask.

    Raises:
        ValueError: the rank is not part of the group, or the group is not one of this world.
    """
    ranks = get_process_group_ranks(group)
    if global_rank not in ranks:
        raise ValueError(
            f"rank {global_rank} of the world is not part of group {_quote_name(group)}, "
            f"whose ranks are {ranks}"
        )
    return ranks.index(global_rank)


def get_global_rank(group: AnyGroup, group_rank: int) -> int:
    """Return the rank in the world of a rank of a group; any rank may ask.

    Raises:
        ValueError: the rank is not part of the group, or the group is not one of this world.
    """
    ranks = get_process_group_ranks(group)
    if not 0 <= group_rank < len(ranks):
        raise ValueError(
            f"rank {group_rank} is not part of group {_quote_name(group)}, "
            f"whose ranks go from 0 to {len(ranks) - 1}"
        )
    return ranks[group_rank]


def get_process_group_ranks(group: AnyGroup) -> list[int]:
    """Return the world ranks of a group, in group order; any rank may ask.

    Raises:
        ValueError: the group is not one of this world, or has been destroyed.
    """
    world = require_world()
    if group is None:
        return list(world.group.ranks)
    if isinstance(group, NonMember):
        return list(group.ranks)
    if not isinstance(group, Group) or not world.is_open(group):
        raise ValueError(f"{group} is not registered: groups are made by allhands.new_group(...)")
    return list(group.ranks)


def get_sequence_number(group: AnyGroup = None) -> int:
    """Return the count of this rank's collectives on a group; -1 outside it.

    Point-to-point calls do not count. Ranks that differ are not equally far.
    """
    return -1 if isinstance(group, NonMember) else (group or require_world().group).sequence


def get_group_tag(group: AnyGroup = None) -> str:
    """Return the tag `find_group` takes: the group's tag, else name; "": world."""
    world = require_world()
    if group is None or group is world.group:
        return ""
    if isinstance(group, NonMember):
        return group.name
    return world.registry.get_tag(group) or group.name


def find_group(tag: str, ranks: Sequence[int]) -> Group | None:
    """Return the group of these world ranks with this tag, or None.

    `tag` is what `get_group_tag` says: "" is the world, if these are its ranks.
    """
    world, wanted = require_world(), tuple(ranks)
    if not tag:
        return world.group if wanted == world.group.ranks else None
    if (found := world.registry.find(world.group.name, tag, wanted)) is not None:
        return found
    found = world.registry.find_by_name(tag)
    return found if found is not None and found.ranks == wanted else None


def find_or_create_group(
    tag: str, ranks: Sequence[int], stride: int | None = None
) -> Group | NonMember:
    """Return the group of these ranks and tag; make a group if none exists.

    Args:
        tag: as for `find_group`.
        ranks: of the world, this one among them.
        stride: every so many of `ranks` are a group, and that with this rank is meant; None: all
            are one group.

    Raises:
        ValueError: this rank is not among them, or nothing is found under "".
    """
    world, width = require_world(), stride or len(ranks)
    if not ranks or width < 0 or len(ranks) % width:
        raise ValueError(f"{len(ranks)} ranks cannot be taken {width} at a time")
    runs = [tuple(ranks[at : at + width]) for at in range(0, len(ranks), width)]
    mine = next((run for run in runs if world.group.rank in run), None)
    if mine is None:
        raise ValueError(f"this rank, {world.group.rank}, is not among the ranks {list(ranks)}")
    if (found := find_group(tag, mine)) is not None:
        return found
    if not tag:
        raise ValueError(f"there is no group of {list(mine)} without a tag: give it one")
    return world.new_group(mine, tag)


def get_group(name: str) -> Group:
    """Return this process's group of that name (`Group.name`).

    Raises:
        ValueError: there is none.
    """
    world = require_world()
    found = world.group if name == world.group.name else world.registry.find_by_name(name)
    if found is None:
        raise ValueError(f"no group {name!r} is registered here: destroyed, or made by other ranks")
    return found


def _quote_name(group: AnyGroup) -> str:
    return repr((group or require_world().group).name)
