"""Arrays of small whole numbers, with sums, copies and comparison."""

from collections.abc import Sequence
from functools import reduce as fold

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]


def numbers(seed: int, length: int, dtype: str = "int64") -> Array:
    """Draw small whole numbers, which every dtype sums without rounding."""
    drawn = np.random.default_rng(seed).integers(0, 5, length)
    return drawn.astype(dtype)


def total(arrays: Sequence[Array]) -> Array:
    return fold(np.add, arrays)


def kept(arrays: Sequence[Array]) -> list[Array]:
    """Copy inputs, for a check against changes."""
    return [array.copy() for array in arrays]


def assert_equal(found: Sequence[Array], wanted: Sequence[Array]) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
