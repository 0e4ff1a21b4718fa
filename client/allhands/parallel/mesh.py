"""DeviceMesh: ranks laid out in several dimensions, with a group along each.

    mesh = ah.init_device_mesh((2, 4), mesh_dim_names=("dp", "tp"))
    ah.all_reduce(gradient, group=mesh.get_group("dp"))
    mesh["tp"].get_local_rank()

Each rank makes the groups that it is in, and asks nobody.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from allhands.api.default_world import default_group
from allhands.group.group import Group
from allhands.group.non_member import NonMember
from allhands.parallel.mesh_groups import get_or_make_group, list_ranks, match_groups
from allhands.parallel.mesh_layout import (
    Ranks,
    check_names,
    check_ranks,
    find_coordinate,
    parse_shape,
    select_along,
)

Dim = int | str


class DeviceMesh:
    """An array of world ranks; each rank has a group along each dimension.

    All ranks that are in it make it, with the same arguments; others may. A part of a mesh, as
    `mesh["dp", "tp"]` gives it, is the one that this rank is in, and has the groups of the whole.
    """

    def __init__(
        self,
        mesh: npt.ArrayLike,
        mesh_dim_names: Sequence[str] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Arrange ranks in a grid and make this rank's groups; a collective call of the world.

        Args:
            mesh: ranks of the world as an integer array of any number of dimensions, each rank at
                most once.
            mesh_dim_names: a name for each dimension; None: unnamed.
            timeout: seconds that a call on the groups may take; None: as in the world.

        Raises:
            TypeError: `mesh` holds something else than whole numbers.
            ValueError: a rank occurs twice or is not in the world; the names do not fit.
        """
        world = default_group()
        ranks = check_ranks(mesh, world.size)
        names = check_names(mesh_dim_names, ranks.ndim)
        where = find_coordinate(ranks, world.rank)
        groups: list[Group] = []
        if where is not None:
            groups = [
                get_or_make_group(select_along(ranks, where, dim), timeout)
                for dim in range(ranks.ndim)
            ]
        self._set_layout(ranks, names, where, groups, timeout)

    @staticmethod
    def from_group(
        group: Group | NonMember | Sequence[Group | NonMember],
        mesh: npt.ArrayLike | None = None,
        *,
        mesh_dim_names: Sequence[str] | None = None,
    ) -> "DeviceMesh":
        """Make a mesh of groups that exist, one along each dimension; no rank is asked.

        Args:
            group: a group, for a mesh of one dimension, or this rank's group along each dimension.
            mesh: ranks of the world, as for the class; of one group it may be left out.
            mesh_dim_names: a name for each dimension; needed with several groups.

        Raises:
            TypeError: something else than groups or ranks.
            ValueError: no groups, several without `mesh` and names, a group that does not have the
                ranks of `mesh` along its dimension, or what the class refuses.
        """
        groups = [group] if isinstance(group, Group | NonMember) else list(group)
        world = default_group()
        ranks = check_ranks(list_ranks(groups, mesh, mesh_dim_names), world.size)
        names = check_names(mesh_dim_names, ranks.ndim)
        where = find_coordinate(ranks, world.rank)
        made = DeviceMesh.__new__(DeviceMesh)
        made._set_layout(ranks, names, where, match_groups(groups, ranks, where), None)
        return made

    def _set_layout(
        self,
        ranks: Ranks,
        names: tuple[str, ...] | None,
        coordinate: tuple[int, ...] | None,
        groups: Sequence[Group],
        timeout: float | None,
    ) -> None:
        ranks.flags.writeable = False
        self.mesh = ranks
        """The ranks of the world; it is not to be written."""
        self.mesh_dim_names = names
        self._coordinate = coordinate
        self._groups = tuple(groups)
        self._timeout = timeout
        self._rank = default_group().rank
        self._root = self
        self._flattened: dict[str, DeviceMesh] = {}

    # ------------------------------------------------------------ what it is

    @property
    def ndim(self) -> int:
        return self.mesh.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        return self.mesh.shape

    def size(self, mesh_dim: Dim | None = None) -> int:
        """Return the number of ranks along a dimension; None: in all."""
        return self.mesh.size if mesh_dim is None else self.shape[self._resolve_dim(mesh_dim)]

    def get_rank(self) -> int:
        """Return this process's rank in the world."""
        return self._rank

    def get_coordinate(self) -> list[int] | None:
        """Return this rank's index in each dimension; None: outside the mesh."""
        return None if self._coordinate is None else list(self._coordinate)

    def get_local_rank(self, mesh_dim: Dim | None = None) -> int:
        """Return this rank's index along a dimension; None: the only dimension.

        Raises:
            RuntimeError: which dimension, of several; or this rank is not in the mesh.
            KeyError, IndexError: there is no such dimension.
        """
        return self._require_coordinate()[self._resolve_only_dim(mesh_dim)]

    def get_group(self, mesh_dim: Dim | None = None) -> Group:
        """Return this rank's group along a dimension; None: the only dimension.

        A rank's place in the group is its place along the dimension. Errors as `get_local_rank`.
        """
        self._require_coordinate()
        return self._groups[self._resolve_only_dim(mesh_dim)]

    def get_all_groups(self) -> list[Group]:
        """Return the groups of this rank, by dimension."""
        self._require_coordinate()
        return list(self._groups)

    def __repr__(self) -> str:
        named = self.mesh_dim_names
        names = "" if named is None else f", mesh_dim_names={named}"
        return f"DeviceMesh({self.mesh.tolist()}{names})"

    # ------------------------------------------------------------ parts of it

    def __getitem__(self, names: str | tuple[str, ...]) -> "DeviceMesh":
        """Return this rank's mesh of the named dimensions, in the order given.

        The name of what `flatten` made gives that.

        Raises:
            KeyError: no dimension has that name.
            ValueError: a name twice.
            RuntimeError: the dimensions have no names, or this rank is not in the mesh.
        """
        chosen = (names,) if isinstance(names, str) else tuple(names)
        if chosen == self.mesh_dim_names:
            return self
        if len(chosen) == 1 and chosen[0] in self._root._flattened:
            return self._root._flattened[chosen[0]]
        if self.mesh_dim_names is None:
            raise RuntimeError("Cannot slice a DeviceMesh without mesh_dim_names!")
        if not chosen or len(set(chosen)) != len(chosen):
            raise ValueError(f"name each dimension once, and at least one: {chosen}")
        dims = [self._resolve_dim(name) for name in chosen]
        where = self._require_coordinate()
        fixed = tuple(slice(None) if dim in dims else at for dim, at in enumerate(where))
        kept = sorted(dims)
        ranks = self.mesh[fixed].transpose([kept.index(dim) for dim in dims]).copy()
        part = DeviceMesh.__new__(DeviceMesh)
        groups = [self._groups[dim] for dim in dims]
        part._set_layout(ranks, chosen, tuple(where[dim] for dim in dims), groups, self._timeout)
        part._root = self._root
        return part

    def flatten(self, name: str | None = None) -> "DeviceMesh":
        """Return the mesh's ranks in one dimension, with a group of all.

        A collective call of the mesh's ranks. Repeated calls return the same mesh; the mesh that
        this one was sliced from finds it by name: `mesh["dp", "tp"].flatten()`, then
        `mesh["dp_tp"]`.

        Args:
            name: of the new dimension; None: the names of the dimensions, joined by "_".

        Raises:
            ValueError: a dimension has that name, or other ranks were flattened under it.
            RuntimeError: this rank is not in the mesh.
        """
        names = self.mesh_dim_names
        name = name or ("flat" if names is None else "_".join(names))
        if self.ndim == 1 and (names is None or name == names[0]):
            return self
        known = self._root._flattened.get(name)
        if known is not None and known.mesh.tolist() == self.mesh.reshape(-1).tolist():
            return known
        if known is not None or name in (self._root.mesh_dim_names or ()):
            raise ValueError(
                f"{name} already exists for submesh of the {self._root}. "
                "Please specify another valid mesh_dim_name."
            )
        self._require_coordinate()
        ranks = self.mesh.reshape(-1).copy()
        where = find_coordinate(ranks, self._rank)
        flat = DeviceMesh.__new__(DeviceMesh)
        flat._set_layout(
            ranks, (name,), where, [get_or_make_group(ranks, self._timeout)], self._timeout
        )
        flat._root = self._root
        self._root._flattened[name] = flat
        return flat

    def _require_coordinate(self) -> tuple[int, ...]:
        if self._coordinate is None:
            raise RuntimeError(f"rank {self._rank} is not in {self}")
        return self._coordinate

    def _resolve_only_dim(self, dim: Dim | None) -> int:
        if dim is not None:
            return self._resolve_dim(dim)
        if self.ndim != 1:
            raise RuntimeError(
                f"Found the DeviceMesh have {self.ndim} dimensions: "
                "mesh_dim needs to be specified when there are several"
            )
        return 0

    def _resolve_dim(self, dim: Dim) -> int:
        names = self.mesh_dim_names or ()
        if isinstance(dim, str):
            if dim not in names:
                raise KeyError(
                    f"Invalid mesh_dim_name {dim!r} specified. Valid mesh_dim_names are {names}."
                )
            return names.index(dim)
        if not -self.ndim <= dim < self.ndim:
            raise IndexError(f"there is no dimension {dim}: the mesh has {self.ndim}")
        return dim % self.ndim


def init_device_mesh(
    mesh_shape: Sequence[int] | int,
    mesh_dim_names: Sequence[str] | None = None,
    *,
    timeout: float | None = None,
) -> DeviceMesh:
    """Lay out the world's ranks in a mesh of this shape, last dimension fastest.

    All ranks call this; those that it has no place for may. See `DeviceMesh`.

    Raises:
        TypeError: the shape is none. (There are no types of devices here.)
        ValueError: more places than the world has ranks; names that do not fit.
    """
    shape = parse_shape(mesh_shape)
    if mesh_dim_names is not None and len(mesh_dim_names) != len(shape):
        raise ValueError(
            "mesh_shape and mesh_dim_names should have same length! "
            f"Found len(mesh_dim_names): {len(mesh_dim_names)} and len(mesh_shape): {len(shape)}"
        )
    if any(length < 1 for length in shape):
        raise ValueError(f"each dimension needs a length of at least 1: {shape}")
    ranks = np.arange(math.prod(shape)).reshape(shape)
    return DeviceMesh(ranks, mesh_dim_names, timeout=timeout)
