"""Layout of a mesh: its ranks in several dimensions, checked; the place and lines of a rank."""

import operator
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ranks = npt.NDArray[np.int64]


def parse_shape(shape: object) -> tuple[int, ...]:
    """Return a shape as numbers; a single number is a 1-D shape."""
    if isinstance(shape, int):
        return (shape,)
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise TypeError(
            f"init_device_mesh takes a shape such as (2, 4) first, not {shape!r}: arrays are on no "
            "type of device"
        )
    return tuple(operator.index(length) for length in shape)


def check_ranks(mesh: npt.ArrayLike, world_size: int) -> Ranks:
    """Return the ranks of a mesh as a new array."""
    given = np.asarray(mesh)
    if given.dtype.kind not in "iu" or not given.size:
        raise TypeError(f"a mesh is made of ranks, at least one, not of {given.dtype}: {mesh!r}")
    ranks = np.atleast_1d(given.astype(np.int64))
    if ranks.size > world_size:
        raise ValueError(
            f"Mesh should not be bigger than default world size {world_size}, "
            f"but found {ranks.size} ranks!"
        )
    if len(np.unique(ranks)) != ranks.size or ranks.min() < 0 or ranks.max() >= world_size:
        raise ValueError(
            f"a mesh has ranks of the world, from 0 to {world_size - 1}, each once at most: "
            f"{ranks.tolist()}"
        )
    return ranks


def check_names(given: Sequence[str] | None, ndim: int) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = tuple(given)
    if len(names) != ndim:
        raise ValueError(f"mesh_dim_names has {len(names)} names, the mesh {ndim} dimensions")
    if len(set(names)) != ndim:
        raise ValueError(f"Each mesh_dim_name must be unique. Found repeated names in {names}")
    return names


def find_coordinate(ranks: Ranks, rank: int) -> tuple[int, ...] | None:
    found = np.argwhere(ranks == rank)
    return tuple(int(at) for at in found[0]) if len(found) else None


def select_along(ranks: Ranks, coordinate: tuple[int, ...], dim: int) -> Ranks:
    """Return the ranks along one dimension through a rank's coordinate."""
    line: Ranks = ranks[
        tuple(slice(None) if at == dim else one for at, one in enumerate(coordinate))
    ]
    return line
