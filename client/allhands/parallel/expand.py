"""Group arguments of functional calls: the accepted forms, and their group."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from allhands.api.calls import refuse_while_coalescing
from allhands.api.default_world import default_group
from allhands.api.group_queries import find_group, find_or_create_group, get_group, get_group_tag
from allhands.errors import InvalidArgument
from allhands.group.group import Group
from allhands.group.non_member import NonMember
from allhands.options import CallOptions, check_options
from allhands.parallel.mesh import DeviceMesh, Dim
from allhands.parallel.mesh_layout import Ranks

GroupLike: TypeAlias = (
    Group
    | NonMember
    | DeviceMesh
    | tuple[DeviceMesh, Dim]
    | Sequence[int]
    | Sequence[Sequence[int]]
    | Ranks
    | str
    | None
)
"""A group, its name, a mesh of one dimension, a mesh and one of its dimensions, ranks of the world,
or several lists of ranks, of which that with this rank is meant; None: the world."""

TAG = "functional"
"""Under which groups are found, and made where there are none, that are given as ranks alone."""


class NotOneDimension(InvalidArgument, AssertionError):
    """A mesh of several dimensions where one is wanted; PyTorch raises an AssertionError there."""


class ExpandedGroup(NamedTuple):
    """A group argument, written out."""

    tag: str
    """By what `find_group` finds it; "": the world, or nothing was said."""
    ranks: list[int]
    """Of the world; of all groups where there are several, one after the other."""
    group_size: int


def expand_group(group: GroupLike, tag: str = "") -> ExpandedGroup:
    """Write a group out; `tag` replaces the group's tag.

    Raises:
        ValueError: groups of different sizes, no ranks, or a group that this rank is not in.
        NotOneDimension: also a ValueError: a mesh of several dimensions.
        TypeError: it is nothing of the kind.
    """
    given: object = group
    match given:
        case [DeviceMesh() as mesh, (int() | str()) as dim]:
            return expand_group(mesh.get_group(dim), tag)
        case DeviceMesh() as mesh:
            if mesh.ndim != 1:
                raise NotOneDimension(
                    "Only 1D mesh is supported, pass in (DeviceMesh, int) together if mesh > 1D: "
                    f"{mesh}"
                )
            return expand_group(mesh.get_group(), tag)
        case NonMember() as absent:
            raise ValueError(f"this rank does not belong to group {absent.name!r}")
        case str() as name:
            return expand_group(get_group(name), tag)
        case None:
            return expand_group(default_group(), tag)
        case Group() as found:
            return ExpandedGroup(tag or get_group_tag(found), list(found.ranks), found.size)
        case np.ndarray() as array:
            return expand_group(array.tolist(), tag)
        case [list() | tuple() | np.ndarray(), *_] as rows:
            lists = [_parse_ranks(row) for row in rows]
            sizes = {len(ranks) for ranks in lists}
            if len(sizes) != 1:
                raise ValueError(f"group sizes must be identical, found {sorted(sizes)}")
            return ExpandedGroup(tag, [rank for ranks in lists for rank in ranks], sizes.pop())
        case [*_]:
            ranks = _parse_ranks(given)
            return ExpandedGroup(tag, ranks, len(ranks))
    raise TypeError(f"a group is a Group, ranks, a DeviceMesh or (mesh, dim), not {given!r}")


def resolve(group: GroupLike, tag: str, call: str, options: CallOptions) -> Group:
    """Return the group of an argument of `call`; given ranks, make the group if missing.

    Raises:
        TypeError: one of the options is none of a call; no group has been made.
    """
    check_options(call, options)
    found = _find_or_create(group, tag)
    refuse_while_coalescing(found, "a functional call")
    return found


def _find_or_create(group: GroupLike, tag: str) -> Group:
    if not tag and (group is None or isinstance(group, Group)):
        return group or default_group()
    found = expand_group(group, tag)
    if not found.tag and found.group_size == len(found.ranks):
        world = find_group("", found.ranks)
        if world is not None:
            return world
    made = find_or_create_group(found.tag or TAG, found.ranks, found.group_size)
    assert isinstance(made, Group)  # this rank is one of them
    return made


def _parse_ranks(ranks: object) -> list[int]:
    """Return ranks as numbers.

    Raises:
        TypeError: something else.
        ValueError: none at all.
    """
    if not isinstance(ranks, Sequence | np.ndarray):
        raise TypeError(f"ranks are whole numbers in a list, not {ranks!r}")
    numbers = list(ranks)
    if not all(isinstance(one, int | np.integer) for one in numbers):
        raise TypeError(f"ranks are whole numbers, not {numbers}")
    if not numbers:
        raise ValueError("a group needs at least one rank")
    return [int(one) for one in numbers]
