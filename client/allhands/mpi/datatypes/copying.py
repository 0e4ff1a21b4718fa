"""Copies between elements in memory and packed data. Pure."""

import numpy as np
import numpy.typing as npt

from allhands.mpi.datatypes.layouts import Layout, Offsets

Bytes = npt.NDArray[np.uint8]

_FEW = 16
"""Bytes of runs up to which each byte is indexed."""


def pack(layout: Layout, data: Bytes, offset: int, count: int) -> Bytes:
    """Return `count` elements from byte `offset` on, packed: a view if they lie end to end.

    Raises:
        ValueError: they reach beyond the data.
    """
    if layout.is_contiguous:
        end = offset + layout.size * count
        if offset < 0 or end > data.size:
            raise _beyond(offset, end, data.size)
        return data[offset:end]
    offsets, lengths = _expand(layout, offset, count, data.size)
    packed: Bytes = np.empty(layout.size * count, np.uint8)
    _copy(data, offsets, lengths, packed, stores=False)
    return packed


def unpack(layout: Layout, source: Bytes, data: Bytes, offset: int, count: int) -> None:
    """Store packed elements, which may be fewer than `count`, from byte `offset` on.

    Raises:
        ValueError: they reach beyond the data.
    """
    if not layout.size:
        return
    whole, rest = divmod(min(source.size, layout.size * count), layout.size)
    if layout.is_contiguous:
        end = offset + whole * layout.size + rest
        if offset < 0 or end > data.size:
            raise _beyond(offset, end, data.size)
        data[offset:end] = source[: end - offset]
        return
    offsets, lengths = _expand(layout, offset, whole + (rest > 0), data.size)
    if rest:
        offsets, lengths = _cut(offsets, lengths, whole * layout.size + rest)
    _copy(data, offsets, lengths, source, stores=True)


def list_runs(layout: Layout, offset: int, count: int, limit: int) -> tuple[Offsets, Offsets]:
    """Return offsets and lengths of the runs of elements from byte `offset` on, in their order.

    Raises:
        ValueError: they reach beyond `limit` bytes.
    """
    if not layout.is_contiguous:
        return _expand(layout, offset, count, limit)
    nbytes = layout.size * count
    if offset < 0 or offset + nbytes > limit:
        raise _beyond(offset, offset + nbytes, limit)
    return np.array([offset], np.int64), np.array([nbytes], np.int64)


def _expand(layout: Layout, offset: int, count: int, limit: int) -> tuple[Offsets, Offsets]:
    """Return the runs of so many elements, all within the data."""
    if count == 1:
        offsets, lengths = layout.offsets + offset, layout.lengths
    else:
        steps = np.arange(count, dtype=np.int64) * layout.extent + offset
        offsets = (steps[:, None] + layout.offsets).ravel()
        lengths = np.tile(layout.lengths, count)
    if offsets.size:
        low, high = int(offsets.min()), int((offsets + lengths).max())
        if low < 0 or high > limit:
            raise _beyond(low, high, limit)
    return offsets, lengths


def _cut(offsets: Offsets, lengths: Offsets, nbytes: int) -> tuple[Offsets, Offsets]:
    """Return the first runs, so many bytes in all."""
    ends = np.cumsum(lengths)
    last = int(np.searchsorted(ends, nbytes))
    offsets, lengths = offsets[: last + 1], lengths[: last + 1].copy()
    lengths[last] -= ends[last] - nbytes
    return offsets, lengths


def _copy(data: Bytes, offsets: Offsets, lengths: Offsets, packed: Bytes, stores: bool) -> None:
    """Copy runs of the data to the packed bytes, or the other way round."""
    if not offsets.size:
        return
    length = int(lengths[0])
    is_even = bool((lengths == length).all())
    if is_even and offsets.size > 1:
        steps = np.diff(offsets)
        stride = int(steps[0])
        if stride > 0 and (steps == stride).all():
            first = int(offsets[0])
            window = np.lib.stride_tricks.as_strided(
                data[first:], (offsets.size, length), (stride, 1)
            )
            rows = packed[: offsets.size * length].reshape(offsets.size, length)
            if stores:
                window[...] = rows
            else:
                rows[...] = window
            return
        if length <= _FEW:
            index = (offsets[:, None] + np.arange(length)).ravel()
            if stores:
                data[index] = packed[: index.size]
            else:
                packed[: index.size] = data[index]
            return
    at = 0
    for offset, nbytes in zip(offsets.tolist(), lengths.tolist(), strict=True):
        if stores:
            data[offset : offset + nbytes] = packed[at : at + nbytes]
        else:
            packed[at : at + nbytes] = data[offset : offset + nbytes]
        at += nbytes


def _beyond(low: int, high: int, limit: int) -> ValueError:
    return ValueError(
        f"the elements reach from byte {low} to byte {high} of a buffer of {limit} bytes"
    )
