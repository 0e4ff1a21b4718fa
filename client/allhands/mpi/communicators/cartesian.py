"""Grids of processes: coordinates, ranks and neighbours, in C order (MPI 4.1, 8.5). Pure."""

import math
from collections.abc import Sequence

from allhands.mpi import errors
from allhands.mpi.constants import ERR_DIMS, ERR_RANK, PROC_NULL


def find_coordinates(dims: Sequence[int], rank: int) -> list[int]:
    """Return the coordinates of a rank."""
    coordinates = []
    for length in reversed(dims):
        rank, coordinate = divmod(rank, length)
        coordinates.append(coordinate)
    return coordinates[::-1]


def find_rank(dims: Sequence[int], periods: Sequence[bool], coordinates: Sequence[int]) -> int:
    """Return the rank at coordinates, which wrap around in periodic dimensions.

    Raises:
        Exception: they lie outside.
    """
    rank = 0
    for length, is_periodic, coordinate in zip(dims, periods, coordinates, strict=True):
        if is_periodic:
            coordinate %= length
        elif not 0 <= coordinate < length:
            raise errors.make_error(
                ERR_RANK, f"coordinate {coordinate} is not among the {length} of its dimension"
            )
        rank = rank * length + coordinate
    return rank


def shift(
    dims: Sequence[int], periods: Sequence[bool], rank: int, direction: int, disp: int
) -> tuple[int, int]:
    """Return the ranks that lie `disp` before and behind one in a dimension, or PROC_NULL."""
    if not 0 <= direction < len(dims):
        raise errors.make_error(ERR_DIMS, f"there is no dimension {direction} of {len(dims)}")
    found = []
    for step in (-disp, disp):
        coordinates = find_coordinates(dims, rank)
        at = coordinates[direction] + step
        if not periods[direction] and not 0 <= at < dims[direction]:
            found.append(PROC_NULL)
            continue
        coordinates[direction] = at
        found.append(find_rank(dims, periods, coordinates))
    return found[0], found[1]


def list_neighbours(dims: Sequence[int], periods: Sequence[bool], rank: int) -> list[int]:
    """Return the ranks before and behind one in each dimension, in this order, or PROC_NULL."""
    return [
        other
        for direction in range(len(dims))
        for other in shift(dims, periods, rank, direction, 1)
    ]


def Compute_dims(nnodes: int, dims: "int | Sequence[int]") -> list[int]:
    """Return the lengths of a grid for so many processes, as equal as can be, longest first.

    Args:
        dims: the number of dimensions, or their lengths, of which those that are 0 are found.

    Raises:
        Exception: no grid of such lengths has so many processes.
    """
    wanted = [0] * dims if isinstance(dims, int) else [int(one) for one in dims]
    if any(length < 0 for length in wanted):
        raise errors.make_error(ERR_DIMS, f"a length is negative: {wanted}")
    known = math.prod(length for length in wanted if length)
    free = wanted.count(0)
    if nnodes < 1 or nnodes % known or (not free and known != nnodes):
        raise errors.make_error(ERR_DIMS, f"{nnodes} processes do not make a grid of {wanted}")
    if not free:
        return wanted
    lengths = iter(sorted(_split(nnodes // known, free), reverse=True))
    return [length or next(lengths) for length in wanted]


def _split(number: int, count: int) -> list[int]:
    """Return factors of a number, as equal as can be: the largest is the least possible."""
    if count == 1:
        return [number]
    best: list[int] = [number] + [1] * (count - 1)
    for first in range(1, math.isqrt(number) + 1 if count == 2 else number + 1):
        if number % first:
            continue
        if first > round(number ** (1 / count)) + 1:
            break
        rest = _split(number // first, count - 1)
        found = sorted([first, *rest], reverse=True)
        if found < best:
            best = found
    return best
