"""Parts of an array that is shared out over a grid of processes, as in HPF. Pure."""

from collections.abc import Sequence

import numpy as np

from allhands.mpi import errors
from allhands.mpi.constants import (
    DISTRIBUTE_BLOCK,
    DISTRIBUTE_CYCLIC,
    DISTRIBUTE_DFLT_DARG,
    DISTRIBUTE_NONE,
    ERR_ARG,
)
from allhands.mpi.datatypes.layouts import Offsets


def share_out(
    size: int,
    rank: int,
    gsizes: Sequence[int],
    distribs: Sequence[int],
    dargs: Sequence[int],
    psizes: Sequence[int],
    order: int,
) -> list[Offsets]:
    """Return the indices in each dimension of the part of a rank; ranks count in C order."""
    coordinates = []
    left = rank
    for number in reversed(psizes):
        left, coordinate = divmod(left, number)
        coordinates.append(coordinate)
    coordinates.reverse()
    return [
        _take(gsize, distrib, darg, psize, coordinate)
        for gsize, distrib, darg, psize, coordinate in zip(
            gsizes, distribs, dargs, psizes, coordinates, strict=True
        )
    ]


def _take(gsize: int, distrib: int, darg: int, psize: int, coordinate: int) -> Offsets:
    match distrib:
        case _ if distrib == DISTRIBUTE_NONE or psize == 1:
            return np.arange(gsize, dtype=np.int64)
        case _ if distrib == DISTRIBUTE_BLOCK:
            block = -(-gsize // psize) if darg == DISTRIBUTE_DFLT_DARG else darg
            if block * psize < gsize:
                raise errors.make_error(
                    ERR_ARG, f"{psize} blocks of {block} do not make {gsize} elements"
                )
            first = min(coordinate * block, gsize)
            return np.arange(first, min(first + block, gsize), dtype=np.int64)
        case _ if distrib == DISTRIBUTE_CYCLIC:
            block = 1 if darg == DISTRIBUTE_DFLT_DARG else darg
            every = np.arange(gsize, dtype=np.int64)
            own: Offsets = every[every // block % psize == coordinate]
            return own
    raise errors.make_error(ERR_ARG, f"{distrib} is no way to share out a dimension")
