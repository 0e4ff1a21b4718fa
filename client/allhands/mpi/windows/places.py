"""Places in the memory of a target: what an operation says of them, as it travels. Pure.

A place names a displacement, a number of elements and their layout. Nothing of it is believed: the
target checks it against its memory before it is touched.
"""

from typing import Any

import msgpack
import numpy as np

from allhands.mpi.datatypes import copying
from allhands.mpi.datatypes.basics import BY_NAME, PAIRS
from allhands.mpi.datatypes.datatype import Datatype
from allhands.mpi.datatypes.layouts import Layout, make_basic
from allhands.mpi.progress.frames import Bytes
from allhands_proto.quick_dataclass import dataclass

_HEAD = np.dtype("<u4")
_MOST_RUNS = 1 << 24
_MOST_BYTES = 1 << 47


@dataclass(frozen=True, slots=True)
class Place:
    """Elements in the memory of a target."""

    disp: int
    """Displacement, in units of the target's window."""
    count: int
    layout: Layout
    element: str
    """Name of the datatype that the elements consist of; "": they are of several."""
    op: str = ""
    """Name of the operation of an accumulation."""

    @property
    def nbytes(self) -> int:
        """Bytes of data."""
        return self.layout.size * self.count


def make_place(disp: int, count: int, datatype: Datatype, op: str = "") -> Place:
    """Return the place of elements of a datatype."""
    return Place(disp, count, datatype.layout, find_element(datatype), op)


def find_element(datatype: Datatype) -> str:
    """Return the name of the datatype that a datatype consists of; "": of several."""
    basics = datatype.layout.basics
    if len(basics) == 1:
        return basics[0][0]
    if len(basics) == 2 and basics[1] == ("INT", 1) and basics[0][1] == 1:
        return next((pair for pair, value in PAIRS.items() if value == basics[0][0]), "")
    return ""


def dump(place: Place, data: "Bytes | None" = None) -> Bytes:
    """Return the bytes of a place, and of data behind it."""
    layout = place.layout
    runs: Any = None
    if not layout.is_contiguous:
        runs = [
            layout.offsets.astype("<i8").tobytes(),
            layout.lengths.astype("<i8").tobytes(),
            layout.extent,
        ]
    head = msgpack.packb([place.disp, place.count, layout.size, runs, place.element, place.op])
    parts = [np.array([len(head)], _HEAD).view(np.uint8), np.frombuffer(head, np.uint8)]
    if data is not None:
        parts.append(data)
    return np.concatenate(parts)


def load(payload: Bytes) -> tuple[Place, Bytes]:
    """Return the place and the data of a payload.

    Raises:
        ValueError: it is none.
    """
    if payload.size < _HEAD.itemsize:
        raise ValueError("an operation on a window has no head")
    length = int(payload[: _HEAD.itemsize].view(_HEAD)[0])
    start = _HEAD.itemsize
    if length > payload.size - start:
        raise ValueError("the head of an operation on a window is longer than its frame")
    try:
        disp, count, size, runs, element, op = msgpack.unpackb(
            payload[start : start + length].tobytes()
        )
    except Exception as error:
        raise ValueError("the head of an operation on a window cannot be read") from error
    if not all(isinstance(one, int) for one in (disp, count, size)) or not all(
        isinstance(one, str) for one in (element, op)
    ):
        raise ValueError("the head of an operation on a window has other things than numbers")
    if not 0 <= count < _MOST_BYTES or not 0 <= size < _MOST_BYTES or count * size > _MOST_BYTES:
        raise ValueError(f"an operation on a window asks for {count} elements of {size} bytes")
    layout = make_basic(element, size, 1) if runs is None else _load_runs(runs, size)
    return Place(disp, count, layout, element, op), payload[start + length :]


def _load_runs(runs: Any, size: int) -> Layout:
    offsets_bytes, lengths_bytes, extent = runs
    if (
        not isinstance(extent, int)
        or len(offsets_bytes) != len(lengths_bytes)
        or len(offsets_bytes) % 8
        or len(offsets_bytes) > 8 * _MOST_RUNS
    ):
        raise ValueError("the runs of an operation on a window do not fit together")
    offsets = np.frombuffer(offsets_bytes, "<i8").astype(np.int64)
    lengths = np.frombuffer(lengths_bytes, "<i8").astype(np.int64)
    if offsets.size and (lengths.min() < 0 or int(lengths.sum()) != size):
        raise ValueError("the runs of an operation on a window have another size than it says")
    return Layout(offsets, lengths, size, 0, extent, (), 1, True)


def read(place: Place, memory: Bytes, start: int) -> Bytes:
    """Return the data at a place, packed.

    Raises:
        ValueError: it lies not within the memory.
    """
    return copying.pack(place.layout, memory, start, place.count)


def write(place: Place, memory: Bytes, start: int, data: Bytes) -> None:
    """Store packed data at a place.

    Raises:
        ValueError: it lies not within the memory, or the data has another size.
    """
    if data.size != place.nbytes:
        raise ValueError(f"{data.size} bytes are brought for a place of {place.nbytes}")
    copying.unpack(place.layout, data, memory, start, place.count)


def is_known(element: str) -> bool:
    """Say whether a name is that of a predefined datatype."""
    return element in BY_NAME or element in PAIRS
