"""Layouts of elements in memory: runs of bytes in the order in which they are sent. Pure.

A layout is computed once, when its datatype is made. Neighbouring runs are one, so that a
contiguous element of whatever size is one run.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from allhands_proto.quick_dataclass import dataclass

Offsets = npt.NDArray[np.int64]
Basics = tuple[tuple[str, int], ...]
"""Codes of basic elements in order, each with how many follow one another."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where the data of one element lies, from the address of the element on."""

    offsets: Offsets
    """First byte of each run."""
    lengths: Offsets
    """Bytes of each run."""
    size: int
    """Bytes of data."""
    lb: int
    extent: int
    """Distance of one element to the next."""
    basics: Basics
    align: int
    """Strictest alignment of a basic element."""
    has_bounds: bool = False
    """Whether lower bound and extent were set, and are not those of the data."""

    @property
    def is_contiguous(self) -> bool:
        """Whether elements lie end to end, without gaps, in order."""
        return (
            self.lb == 0
            and self.size == self.extent
            and (self.size == 0 or (self.offsets.size == 1 and self.offsets[0] == 0))
        )

    def measure_data(self) -> tuple[int, int]:
        """Return the first byte of data, and the bytes from there to the end of the last."""
        if self.offsets.size == 1:
            return int(self.offsets[0]), int(self.lengths[0])
        if not self.offsets.size:
            return 0, 0
        first = int(self.offsets.min())
        return first, int((self.offsets + self.lengths).max()) - first

    @property
    def basic_count(self) -> int:
        """Basic elements of one element."""
        return sum(count for _, count in self.basics)


_NONE: Offsets = np.empty(0, np.int64)
EMPTY = Layout(_NONE, _NONE, 0, 0, 0, (), 1)


def make_basic(code: str, size: int, align: int) -> Layout:
    """Return the layout of one basic element."""
    return Layout(
        np.zeros(1, np.int64), np.array([size], np.int64), size, 0, size, ((code, 1),), align
    )


def place(old: Layout, count: int, displacements: Sequence[int] | Offsets) -> Layout:
    """Return the layout of blocks of `count` elements at displacements in bytes."""
    where = np.asarray(displacements, np.int64)
    if not count or not where.size:
        return EMPTY
    if where.size == 1 and old.size and old.is_contiguous:
        return _place_run(old, count, int(where[0]))
    if old.is_contiguous:
        offsets = np.zeros(1, np.int64) if old.size else _NONE
        lengths = np.array([old.size * count], np.int64) if old.size else _NONE
    else:
        steps = np.arange(count, dtype=np.int64) * old.extent
        offsets = (steps[:, None] + old.offsets).ravel()
        lengths = np.tile(old.lengths, count)
    offsets, lengths = _merge((where[:, None] + offsets).ravel(), np.tile(lengths, where.size))
    span = (count - 1) * old.extent
    lb = int(where.min()) + min(old.lb, old.lb + span)
    ub = int(where.max()) + old.lb + old.extent + max(0, span)
    return Layout(
        offsets,
        lengths,
        old.size * count * where.size,
        lb,
        ub - lb,
        _repeat(old.basics, count * where.size),
        old.align,
        old.has_bounds,
    )


def _place_run(old: Layout, count: int, displacement: int) -> Layout:
    """Return the layout of one block of elements without gaps."""
    size = old.size * count
    return Layout(
        np.array([displacement], np.int64),
        np.array([size], np.int64),
        size,
        displacement,
        size,
        _repeat(old.basics, count),
        old.align,
        old.has_bounds,
    )


def join(parts: Sequence[Layout]) -> Layout:
    """Return the layout of elements that consist of parts, which lie where they lie."""
    parts = [part for part in parts if part is not EMPTY]
    if not parts:
        return EMPTY
    offsets, lengths = _merge(
        np.concatenate([part.offsets for part in parts]),
        np.concatenate([part.lengths for part in parts]),
    )
    lb = min(part.lb for part in parts)
    ub = max(part.lb + part.extent for part in parts)
    basics: Basics = ()
    for part in parts:
        basics = _append(basics, part.basics)
    return Layout(
        offsets,
        lengths,
        sum(part.size for part in parts),
        lb,
        ub - lb,
        basics,
        max(part.align for part in parts),
        any(part.has_bounds for part in parts),
    )


def pad(layout: Layout) -> Layout:
    """Return the layout with an extent that keeps following elements aligned, as in C."""
    if layout.has_bounds or layout.align <= 1:
        return layout
    extent = -(-layout.extent // layout.align) * layout.align
    return layout if extent == layout.extent else _with_bounds(layout, layout.lb, extent, False)


def resize(layout: Layout, lb: int, extent: int) -> Layout:
    """Return the layout with another lower bound and extent."""
    return _with_bounds(layout, lb, extent, True)


def place_subarray(
    old: Layout, sizes: Sequence[int], subsizes: Sequence[int], starts: Sequence[int]
) -> Layout:
    """Return the layout of a part of an array in C order; the extent is that of the array."""
    total = math.prod(sizes) * old.extent
    layout = old
    step = old.extent
    for size, subsize, start in zip(
        reversed(sizes), reversed(subsizes), reversed(starts), strict=True
    ):
        wanted = np.arange(start, start + subsize, dtype=np.int64) * step
        layout = _at(layout, wanted)
        step *= size
    return resize(layout, 0, total)


def place_indices(old: Layout, sizes: Sequence[int], indices: Sequence[Offsets]) -> Layout:
    """Return the layout of the elements of an array in C order with such indices by dimension."""
    layout = old
    step = old.extent
    for size, chosen in zip(reversed(sizes), reversed(indices), strict=True):
        layout = _at(layout, chosen * step)
        step *= size
    return resize(layout, 0, math.prod(sizes) * old.extent)


def _at(layout: Layout, displacements: Offsets) -> Layout:
    """Return the layout of one element at each displacement, whatever its extent."""
    return place(layout, 1, displacements)


def _with_bounds(layout: Layout, lb: int, extent: int, has_bounds: bool) -> Layout:
    return Layout(
        layout.offsets,
        layout.lengths,
        layout.size,
        lb,
        extent,
        layout.basics,
        layout.align,
        has_bounds,
    )


def _merge(offsets: Offsets, lengths: Offsets) -> tuple[Offsets, Offsets]:
    """Return runs in the same order, with those that follow one another made one."""
    if np.count_nonzero(lengths) < lengths.size:
        kept = lengths > 0
        offsets, lengths = offsets[kept], lengths[kept]
    if offsets.size < 2:
        return offsets, lengths
    begins = np.empty(offsets.size, bool)
    begins[0] = True
    np.not_equal(offsets[1:], offsets[:-1] + lengths[:-1], out=begins[1:])
    if np.count_nonzero(begins) == begins.size:
        return offsets, lengths
    first = np.flatnonzero(begins)
    return offsets[first], np.add.reduceat(lengths, first)


def _repeat(basics: Basics, count: int) -> Basics:
    if len(basics) == 1:
        ((code, number),) = basics
        return ((code, number * count),)
    return basics * count


def _append(basics: Basics, more: Basics) -> Basics:
    if basics and more and basics[-1][0] == more[0][0]:
        joined = (basics[-1][0], basics[-1][1] + more[0][1])
        return (*basics[:-1], joined, *more[1:])
    return basics + more
