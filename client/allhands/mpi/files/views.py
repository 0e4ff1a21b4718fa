"""Views of files: the bytes of a file that a rank sees, one after the other. Pure.

A view is a displacement and a tile of byte runs, which repeats. Data has no gaps in the view, and
lies in the file where the runs are.
"""

from dataclasses import dataclass

import numpy as np

from allhands.mpi.datatypes.layouts import Layout, Offsets


@dataclass(frozen=True, slots=True)
class View:
    """The part of a file that a rank sees."""

    disp: int
    """First byte of the first tile."""
    unit: int
    """Bytes of data of an elementary element, in which offsets count."""
    tile: Layout

    def find_runs(self, start: int, nbytes: int) -> tuple[Offsets, Offsets]:
        """Return first bytes in the file and lengths of the runs of data from a byte on."""
        tile = self.tile
        if nbytes <= 0 or not tile.size:
            return _NONE, _NONE
        if tile.is_contiguous:
            return np.array([self.disp + start], np.int64), np.array([nbytes], np.int64)
        first, last = start // tile.size, (start + nbytes - 1) // tile.size
        steps = np.arange(first, last + 1, dtype=np.int64) * tile.extent + self.disp
        offsets = (steps[:, None] + tile.offsets).ravel()
        lengths = np.tile(tile.lengths, steps.size)
        return _cut(offsets, lengths, start - first * tile.size, nbytes)

    def find_byte(self, start: int) -> int:
        """Return the byte of the file in which the data's byte lies."""
        tile = self.tile
        whole, rest = divmod(start, tile.size) if tile.size else (0, 0)
        ends = np.cumsum(tile.lengths)
        run = int(np.searchsorted(ends, rest, side="right"))
        if run >= ends.size:
            return self.disp + whole * tile.extent
        within = rest - (int(ends[run - 1]) if run else 0)
        return self.disp + whole * tile.extent + int(tile.offsets[run]) + within

    def measure(self, size: int) -> int:
        """Return how many bytes of data lie in the first bytes of a file."""
        tile = self.tile
        span = size - self.disp
        if span <= 0 or not tile.size or tile.extent <= 0:
            return 0
        whole = max(span // tile.extent - 1, 0)
        data = whole * tile.size
        at = whole * tile.extent
        while at < span:
            ends = np.minimum(tile.offsets + tile.lengths + at, span)
            data += int(np.maximum(ends - (tile.offsets + at), 0).sum())
            at += tile.extent
        return data


_NONE: Offsets = np.empty(0, np.int64)


def _cut(offsets: Offsets, lengths: Offsets, skipped: int, nbytes: int) -> tuple[Offsets, Offsets]:
    """Return the runs of so many bytes behind those that are skipped; neighbours are one."""
    ends = np.cumsum(lengths)
    begins = ends - lengths
    low = np.maximum(begins, skipped)
    high = np.minimum(ends, skipped + nbytes)
    kept = high > low
    found, sizes = (offsets + (low - begins))[kept], (high - low)[kept]
    if found.size < 2:
        return found, sizes
    is_first = np.empty(found.size, bool)
    is_first[0] = True
    np.not_equal(found[1:], found[:-1] + sizes[:-1], out=is_first[1:])
    firsts = np.flatnonzero(is_first)
    return found[firsts], np.add.reduceat(sizes, firsts)
