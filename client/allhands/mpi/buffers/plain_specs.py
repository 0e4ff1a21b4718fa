"""Buffer specifications that need no second look, as arrays; read by the native core.

Without the core there are none: nor are there direct calls, for which they are read.
"""

from typing import Any

import numpy as np

from allhands.mpi.progress.frames import Bytes
from allhands.runtime import native_core

_core, _ = native_core.find()


def _view_none(spec: object, written: bool, as_bytes: bool, blocks: int, /) -> Any:
    return None


def _copy_none(spec: object, array: Any, /) -> bool:
    return False


view_spec = _view_none if _core is None else _core.view_spec
copy_spec = _copy_none if _core is None else _core.copy_spec


def view_blocks(spec: Any, written: bool, blocks: int) -> list[Bytes] | None:
    """Return the memory of blocks that have sizes of their own; None: it is to be read with care.

    `spec` is a list of a buffer, counts or a tuple of counts and displacements, and a datatype.
    """
    if spec.__class__ is not list and spec.__class__ is not tuple:
        return None
    displs: Any = None
    match len(spec):
        case 2:
            buf, counts = spec
        case 3:
            buf, counts, datatype = spec
            buf = (buf, datatype)
        case 4:
            buf, counts, displs, datatype = spec
            buf = (buf, datatype)
        case _:
            return None
    if counts.__class__ is tuple and len(counts) == 2 and displs is None:
        counts, displs = counts
    elements = view_spec(buf, written, False, 1)
    counts = list_numbers(counts, blocks)
    starts = None if displs is None else list_numbers(displs, blocks)
    if elements is None or counts is None or (displs is not None and starts is None):
        return None
    room, size = elements.size, elements.itemsize
    data = elements.view(np.uint8)
    found, start = [], 0
    for at, count in enumerate(counts):
        if starts is not None:
            start = starts[at]
        if count < 0 or start < 0 or start + count > room:
            return None
        found.append(data[start * size : (start + count) * size])
        start += count
    return found


def list_numbers(given: Any, length: int) -> list[int] | None:
    """Return so many numbers, one for each rank; None: they are to be read with care."""
    if given.__class__ is np.ndarray and given.dtype.kind == "i":
        given = given.tolist()
    is_plain = given.__class__ in (list, tuple) and len(given) == length
    return list(given) if is_plain and all(one.__class__ is int for one in given) else None
