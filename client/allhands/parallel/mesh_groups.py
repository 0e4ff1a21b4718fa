"""Groups of a mesh: made for its ranks, or given and compared with them."""

from collections.abc import Sequence

import numpy.typing as npt

from allhands.api.default_world import default_group
from allhands.api.groups import new_group
from allhands.group.group import Group
from allhands.group.non_member import NonMember
from allhands.parallel.mesh_layout import Ranks, select_along


def get_or_make_group(ranks: Ranks, timeout: float | None) -> Group:
    """Return a group of ranks, this rank included; the world for all ranks."""
    world, listed = default_group(), ranks.tolist()
    if tuple(listed) == world.ranks and timeout is None:
        return world
    made = new_group(listed, timeout=timeout)
    assert not isinstance(made, NonMember)
    return made


def list_ranks(
    groups: Sequence[Group | NonMember],
    mesh: npt.ArrayLike | None,
    names: Sequence[str] | None,
) -> npt.ArrayLike:
    """Return the ranks of a mesh of groups: those given, or those of a single group.

    Raises:
        TypeError: something else than groups.
        ValueError: no groups, or several without ranks or names.
    """
    for one in groups:
        if not isinstance(one, Group | NonMember):
            raise TypeError(f"from_group takes a group or several, not {one!r}")
    if not groups:
        raise ValueError("from_group takes one group at least, along each dimension of the mesh")
    if len(groups) > 1 and (mesh is None or names is None):
        missing = "mesh" if mesh is None else "mesh_dim_names"
        raise ValueError(f"from_group of several groups needs {missing}, to order their ranks")
    if mesh is not None:
        return mesh
    if not groups[0].ranks:
        raise ValueError(f"the ranks of {groups[0].name!r} are not known here: give mesh")
    return groups[0].ranks


def match_groups(
    groups: Sequence[Group | NonMember], ranks: Ranks, coordinate: tuple[int, ...] | None
) -> list[Group]:
    """Return the groups along the dimensions of a mesh; none for a rank outside of it.

    Raises:
        ValueError: another number of groups than dimensions, or one of other ranks.
    """
    if len(groups) != ranks.ndim:
        raise ValueError(f"a mesh of {ranks.ndim} dimensions has as many groups, not {len(groups)}")
    members = [one for one in groups if isinstance(one, Group)]
    if coordinate is None:
        if members:
            raise ValueError(f"this rank is in {members[0]}, and not in the mesh {ranks.tolist()}")
        return []
    for dim, one in enumerate(groups):
        line = tuple(select_along(ranks, coordinate, dim).tolist())
        if not isinstance(one, Group) or one.ranks != line:
            raise ValueError(
                f"group {one.name!r} has ranks {list(one.ranks)}, and the mesh has {list(line)} "
                f"along dimension {dim} through this rank"
            )
    return members
