"""Buffer: arrays end to end, addressed by schedules as one run of elements."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]


class Buffer:
    """1-D contiguous arrays of one dtype, end to end; the arrays belong to the caller."""

    __slots__ = ("arrays", "dtype")

    def __init__(self, arrays: Sequence[Array], dtype: np.dtype[np.generic]) -> None:
        self.arrays = arrays
        self.dtype = dtype

    def __len__(self) -> int:
        return sum(map(len, self.arrays))

    def view_pieces(self, start: int, stop: int) -> list[Array]:
        """Return views of the elements [start, stop), as many as arrays they lie in."""
        if len(self.arrays) == 1:
            return [self.arrays[0][start:stop]] if start < stop else []
        found: list[Array] = []
        base = 0
        for array in self.arrays:
            length = len(array)
            low, high = max(start - base, 0), min(stop - base, length)
            if low < high:
                found.append(array[low:high])
            base += length
            if base >= stop:
                break
        return found

    def view_whole(self, start: int, stop: int) -> Array:
        """Return a view of [start, stop), which must lie within a single array."""
        pieces = self.view_pieces(start, stop)
        if not pieces:
            return np.empty(0, self.dtype)
        assert len(pieces) == 1, "a span that is reduced lies in one array"
        return pieces[0]

    def slice_arrays(self, start: int, stop: int) -> "Buffer":
        """Return the elements [start, stop) of every array, as a buffer of its own."""
        return Buffer([array[start:stop] for array in self.arrays], self.dtype)


def view_as_bytes(array: Array) -> memoryview:
    """View a 1-D contiguous array of any dtype as bytes."""
    return array.view(np.uint8).data
