"""Messages of arrays whose shapes, and perhaps dtypes, only the sender knows.

A head has the shapes, and the name of the dtype where it is not agreed on; the data follows,
aligned as in the messages of objects.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from allhands.collectives.arguments import AnyArray
from allhands.collectives.core_call import Message
from allhands.collectives.signature import Shape
from allhands.data.codec import align
from allhands.data.dtypes import get_dtype_name, parse_dtype
from allhands.data.serializer import UInt8Array

_SIZE: Final = struct.Struct("<q")
"""Of the head, at its beginning."""


def pack_array(x: AnyArray) -> Message:
    """Return the message of an array of a dtype that the receiver knows."""
    return (_pack_head((x.shape,), ""), np.ascontiguousarray(x))


def pack_typed_array(x: AnyArray) -> Message:
    """Return the message of an array, its dtype included."""
    return (_pack_head((x.shape,), get_dtype_name(x.dtype)), np.ascontiguousarray(x))


def pack_block(x: AnyArray, shapes: tuple[Shape, ...]) -> Message:
    """Return the message of one of several arrays, with the shapes of all."""
    return (_pack_head(shapes, ""), np.ascontiguousarray(x))


def read_array(received: UInt8Array | None, dtype: "np.dtype[Any]") -> NDArray[Any]:
    """Return the array of a message, in the memory of the message."""
    assert received is not None, "own messages are not received"
    (shape,), _, start = _read_head(received)
    return _view_data(received, start, shape, dtype)


def read_typed_array(received: UInt8Array | None) -> NDArray[Any]:
    """Return the array of a message that has its dtype, in the memory of the message."""
    assert received is not None, "own messages are not received"
    (shape,), name, start = _read_head(received)
    return _view_data(received, start, shape, parse_dtype(name))


def read_block(
    received: UInt8Array | None, dtype: "np.dtype[Any]"
) -> tuple[NDArray[Any], Sequence[Shape]]:
    """Return the array of a message, flat, and the shapes that came with it."""
    assert received is not None, "own messages are not received"
    shapes, _, start = _read_head(received)
    return received[start:].view(dtype), shapes


@lru_cache(maxsize=1024)
def _pack_head(shapes: tuple[Shape, ...], dtype_name: str) -> bytes:
    name = dtype_name.encode()
    numbers = [len(shapes), len(name)]
    for shape in shapes:
        numbers += (len(shape), *shape)
    size = 8 * (1 + len(numbers)) + len(name)
    padded = align(size)
    head = struct.pack(f"<{1 + len(numbers)}q", padded, *numbers) + name
    return head.ljust(padded, b"\0")


@lru_cache(maxsize=1024)
def _parse_head(head: bytes) -> tuple[tuple[Shape, ...], str]:
    numbers = struct.unpack(f"<{len(head) // 8}q", head)
    count, name_length = numbers[1:3]
    shapes, at = [], 3
    for _ in range(count):
        shapes.append(numbers[at + 1 : at + 1 + numbers[at]])
        at += 1 + numbers[at]
    return tuple(shapes), head[8 * at : 8 * at + name_length].decode()


def _read_head(received: UInt8Array) -> tuple[tuple[Shape, ...], str, int]:
    """Return the shapes, the name of the dtype and the place of the data in a message."""
    head = received.data
    (size,) = _SIZE.unpack_from(head)
    shapes, name = _parse_head(head[:size].tobytes())
    return shapes, name, size


def _view_data(
    received: UInt8Array, start: int, shape: Shape, dtype: "np.dtype[Any]"
) -> NDArray[Any]:
    found: NDArray[Any] = np.ndarray(shape, dtype, received.data, start)
    if start + found.nbytes != received.nbytes:
        raise ValueError(f"{received.nbytes - start} bytes came for an array of {found.nbytes}")
    return found
