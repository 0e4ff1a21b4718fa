"""Random arrays with exactly known results: small whole numbers times a scale.

The scale differs from call to call, so that no result of an earlier call passes for this one's.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from allhands.bench.case import MAX_SCALE, MAX_VALUE, BenchCase

Array = NDArray[np.generic]

_BLOCK = 1 << 16


def get_carrier(dtype: str) -> np.dtype[np.generic]:
    """Return NumPy's type of the same bytes: NumPy itself has no bfloat16."""
    return np.dtype(np.uint16) if dtype == "bfloat16" else np.dtype(dtype)


def choose_scale(call: int) -> int:
    return call % MAX_SCALE + 1


class CaseData:
    """Input and expected output of one rank in a case."""

    def __init__(self, case: BenchCase, rank: int, seed: int) -> None:
        self._case = case
        self._has_result = rank in case.receivers
        self._input = draw_values(case, rank, seed)
        self._correct = self._compute_expected(rank, seed)

    def fill(self, x: Array, scale: int) -> None:
        """Write this rank's input."""
        _encode(self._input, scale, self._case.dtype, x)

    def find_error(self, result: Array, scale: int) -> str | None:
        """Return a description of an error in the result; None: correct."""
        if not self._has_result:
            return None
        if result.size != self._correct.size:
            return f"{result.size} elements came, not {self._correct.size}"
        due = np.empty(min(_BLOCK, result.size), result.dtype)
        for start in range(0, result.size, _BLOCK):
            part = result[start : start + _BLOCK]
            _encode(
                self._correct[start : start + _BLOCK], scale, self._case.dtype, due[: part.size]
            )
            if not np.array_equal(part, due[: part.size]):
                place = int(np.argmax(part != due[: part.size]))
                return (
                    f"element {start + place} of {result.size} is {part[place]!r}, "
                    f"not {due[place]!r} (as {result.dtype})"
                )
        return None

    def _compute_expected(self, rank: int, seed: int) -> NDArray[np.int16]:
        cell = self._case
        brought = (draw_values(cell, other, seed) for other in range(cell.ranks))
        share = cell.elements // cell.ranks
        mine = slice(rank * share, (rank + 1) * share)
        match cell.operation:
            case "scan":
                return _sum(islice(brought, rank + 1), slice(None))
            case "exscan":
                return _sum(islice(brought, rank or 1), slice(None))
            case "all_gather_v" | "gather_v" | "all_gather_object":
                return np.concatenate(list(brought))
            case "all_to_all_v":
                blocks = (np.split(x, cell.list_block_ends(r)) for r, x in enumerate(brought))
                return np.concatenate([one[rank] for one in blocks])
            case "scatter_v":
                return np.split(draw_values(cell, 0, seed), cell.list_block_ends(0))[rank]
            case "reduce_scatter_v":
                return np.split(_sum(brought, slice(None)), cell.list_block_ends(0))[rank]
            case name if name == "reduce" or name.endswith("all_reduce"):
                return _sum(brought, slice(None))
            case "reduce_scatter":
                return _sum(brought, mine)
            case "all_gather" | "gather":
                return np.concatenate(list(brought))
            case "all_to_all":
                return np.concatenate([one[mine] for one in brought])
            case "scatter":
                return draw_values(cell, 0, seed)[mine]
            case "exchange":
                return draw_values(cell, (rank - 1) % cell.ranks, seed)
            case "sendrecv":
                return draw_values(cell, 1 - rank, seed) if rank < 2 else self._input
        return draw_values(cell, 0, seed)


def _sum(arrays: Iterator[NDArray[np.int16]], part: slice) -> NDArray[np.int16]:
    total = next(arrays)[part].copy()
    for one in arrays:
        total += one[part]
    return total


def draw_values(case: BenchCase, rank: int, seed: int) -> NDArray[np.int16]:
    """Draw a rank's input at scale 1; never 0, which no scale would change."""
    random = np.random.default_rng((seed, rank))
    elements = case.count_input(rank)
    values = random.integers(1, MAX_VALUE, elements, np.int8, endpoint=True)
    if not case.dtype.startswith("u"):
        values *= random.integers(0, 1, elements, np.int8, endpoint=True) * 2 - 1
    return values.astype(np.int16)


def _encode(values: NDArray[np.int16], scale: int, dtype: str, out: Array) -> None:
    for start in range(0, out.size, _BLOCK):
        stop = min(start + _BLOCK, out.size)
        block = values[start:stop] * np.int16(scale)
        if dtype == "bfloat16":
            # Whole numbers up to 256 are exact in bfloat16, the upper half of a float32.
            out[start:stop] = block.astype(np.float32).view(np.uint32) >> 16
        else:
            out[start:stop] = block
