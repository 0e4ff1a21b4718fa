"""Views of files: the bytes of a file that a rank sees, one after the other. Pure.

A view is a displacement and a tile of byte runs, which repeats. Data has no gaps in the view, and
lies in the file where the runs are.
"""

from dataclasses import field

import numpy as np

from allhands.mpi.datatypes.layouts import Layout, Offsets
from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class View:
    """The part of a file that a rank sees."""

    disp: int
    """First byte of the first tile."""
    unit: int
    """Bytes of data of an elementary element, in which offsets count."""
    tile: Layout
    ends: Offsets = field(init=False, repr=False, compare=False)
    """Where each run of a tile ends, in bytes of its data."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ends", np.cumsum(self.tile.lengths))

    def find_runs(self, start: int, nbytes: int) -> tuple[Offsets, Offsets]:
        """Return first bytes in the file and lengths of the runs of data from a byte on.

        Runs that follow one another are one. The time is that of the runs found, however many a
        tile has.
        """
        tile = self.tile
        if nbytes <= 0 or not tile.size:
            return _NONE, _NONE
        if tile.is_contiguous:
            return np.array([self.disp + start], np.int64), np.array([nbytes], np.int64)
        first, skipped = self._locate(start)
        last, within = self._locate(start + nbytes - 1)
        tiles, runs = np.divmod(np.arange(first, last + 1, dtype=np.int64), self.ends.size)
        offsets = tile.offsets[runs] + (tiles * tile.extent + self.disp)
        lengths = tile.lengths[runs]
        lengths[-1] = within + 1
        offsets[0] += skipped
        lengths[0] -= skipped
        return _merge(offsets, lengths)

    def find_byte(self, start: int) -> int:
        """Return the byte of the file in which the data's byte lies."""
        tile = self.tile
        if not tile.size:
            return self.disp
        number, within = self._locate(start)
        whole, run = divmod(number, self.ends.size)
        return self.disp + whole * tile.extent + int(tile.offsets[run]) + within

    def measure(self, size: int) -> int:
        """Return how many bytes of data lie in the first bytes of a file."""
        tile = self.tile
        span = size - self.disp
        if span <= 0 or not tile.size or tile.extent <= 0:
            return 0
        # A tile may reach beyond its extent, where it is between those that follow.
        reach = sum(tile.measure_data())
        whole = (span - reach) // tile.extent + 1 if span >= reach else 0
        data = whole * tile.size
        for at in range(whole * tile.extent, span, tile.extent):
            ends = np.minimum(tile.offsets + tile.lengths + at, span)
            data += int(np.maximum(ends - (tile.offsets + at), 0).sum())
        return data

    def _locate(self, byte: int) -> tuple[int, int]:
        """Return the run in which the data's byte lies, counted from the first, and where."""
        whole, rest = divmod(byte, self.tile.size)
        run = int(np.searchsorted(self.ends, rest, side="right"))
        begin = int(self.ends[run - 1]) if run else 0
        return whole * self.ends.size + run, rest - begin


_NONE: Offsets = np.empty(0, np.int64)


def _merge(offsets: Offsets, lengths: Offsets) -> tuple[Offsets, Offsets]:
    """Return the runs in the same order, with those that follow one another made one."""
    if offsets.size < 2:
        return offsets, lengths
    is_first = np.empty(offsets.size, bool)
    is_first[0] = True
    np.not_equal(offsets[1:], offsets[:-1] + lengths[:-1], out=is_first[1:])
    if is_first.all():
        return offsets, lengths
    firsts = np.flatnonzero(is_first)
    return offsets[firsts], np.add.reduceat(lengths, firsts)
