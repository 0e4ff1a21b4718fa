"""Serialization of objects: known types by the codec, the rest by pickle if allowed."""

import pickle
import struct
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from allhands.data.blocks import BLOCK_BYTES, allocate_bytes
from allhands.data.codec import DataclassRegistry, align, decode, encode

UInt8Array = NDArray[np.uint8]

MAX_BYTES: Final = 4 << 30
"""Of one object, as it travels."""
_TYPED, _PICKLED, _BESIDE = 0, 1, 2
_SMALL_BYTES: Final = 1024
"""Of a message that is copied before it is decoded, which takes less time than a view of it."""
_HEAD = struct.Struct("<B7xQ")
"""Of a value with arrays beside it: its kind, and the bytes of what is packed."""
_TYPED_HEAD, _PICKLED_HEAD = bytes([_TYPED]), bytes([_PICKLED])
Parts: TypeAlias = tuple[bytes | NDArray[Any], ...]
"""Bytes of an object, buffer after buffer; arrays are C-contiguous.

The first has a head, and what is packed; behind it are large arrays and the gaps between them.
"""


class ObjectSerializer:
    """How objects become bytes on a group."""

    def __init__(self, types: DataclassRegistry, allow_pickle: bool = False) -> None:
        self.types = types
        self.allow_pickle = allow_pickle
        """Whether what `types` do not cover is pickled; who unpickles runs what a peer sent."""

    def encode(self, value: object) -> UInt8Array:
        """Return the bytes of an object; raises as `encode_parts` does."""
        return join_parts(self.encode_parts(value))

    def encode_parts(self, value: object) -> Parts:
        """Return the bytes of an object, of which large arrays are the object's own memory.

        Raises:
            TypeError: of a type that does not travel here.
            ValueError: too large, or too deep in itself.
        """
        try:
            packed, arrays = encode(value, self.types)
            if not arrays and len(packed) < MAX_BYTES:
                return (_TYPED_HEAD + packed,)
            parts = _lay_out(packed, arrays) if arrays else (_TYPED_HEAD + packed,)
        except TypeError:
            if not self.allow_pickle:
                raise
            parts = (_PICKLED_HEAD + pickle.dumps(value),)
        if (nbytes := count_bytes(parts)) > MAX_BYTES:
            raise ValueError(f"the object takes {nbytes} bytes, and {MAX_BYTES} may travel")
        return parts

    def decode(self, data: UInt8Array) -> Any:
        """Decode an object received from a peer; large arrays are views of `data`.

        Raises:
            ValueError: it is none, or pickled where that is not allowed.
        """
        if 0 < len(data) <= _SMALL_BYTES and (small := data.tobytes())[0] == _TYPED:
            return decode(small[1:], self.types)
        if not len(data):
            raise ValueError("what came is no object: it has no bytes")
        match int(data[0]):
            case 0:
                return decode(data[1:].data, self.types)
            case 1 if self.allow_pickle:  # who makes such a group trusts its ranks
                return pickle.loads(data[1:].data)  # noqa: S301
            case 1:
                raise ValueError(
                    "a peer sent a pickled object, and this rank's group does not allow that: "
                    "make it with allow_pickle=True on every rank if you trust all of them"
                )
            case 2:
                return self._decode_beside(data)
            case kind:
                raise ValueError(f"what came is no object: it is of kind {kind}")

    def decode_parts(self, parts: Parts) -> Any:
        """Return a new object, equal to that of which these are the parts."""
        first = parts[0]
        assert isinstance(first, bytes), "arrays come behind it"
        if first[0] == _TYPED:
            return decode(first[1:], self.types)
        if first[0] == _PICKLED:
            return pickle.loads(first[1:])  # noqa: S301  # of this rank
        end = _HEAD.size + _HEAD.unpack_from(first)[1]
        return decode(first[_HEAD.size : end], self.types, join_parts(parts[1:]))

    def _decode_beside(self, data: UInt8Array) -> Any:
        nbytes = _HEAD.unpack_from(data.data)[1] if len(data) >= _HEAD.size else MAX_BYTES
        end = _HEAD.size + nbytes
        if end > len(data):
            raise ValueError("what came is no object: it ends too early")
        return decode(data[_HEAD.size : end].data, self.types, data[align(end) :])


def join_parts(parts: Parts) -> UInt8Array:
    """Return the bytes of an object in one new array."""
    nbytes, end = count_bytes(parts), 0
    if nbytes < BLOCK_BYTES:
        buffers = [part.data if isinstance(part, np.ndarray) else part for part in parts]
        return np.frombuffer(bytearray().join(buffers), np.uint8)
    found = allocate_bytes(nbytes)
    for part in parts:
        start, end = end, end + (len(part) if isinstance(part, bytes) else part.nbytes)
        found[start:end] = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part
    return found


def count_bytes(parts: Parts) -> int:
    """Return the bytes of all parts."""
    nbytes = 0
    for part in parts:
        nbytes += len(part) if isinstance(part, bytes) else part.nbytes
    return nbytes


def _lay_out(packed: bytes, arrays: "list[NDArray[Any]]") -> Parts:
    """Put arrays behind the packed value, each at a multiple of the alignment."""
    head = _HEAD.pack(_BESIDE, len(packed)) + packed
    parts: list[bytes | NDArray[Any]] = [head + _pad(len(head))]
    for array in arrays:
        # As bytes, for NumPy has dtypes that are none of a buffer.
        flat = array if array.ndim == 1 else array.reshape(-1)
        parts += (flat.view(np.uint8), _pad(array.nbytes))
    return tuple(parts[:-1])


def _pad(nbytes: int) -> bytes:
    """Return the bytes from an end to the next multiple of the alignment."""
    return bytes(align(nbytes) - nbytes)


def check_size(nbytes: int) -> int:
    """Return a peer's announced object size, in bytes, if within the limit."""
    if not 0 < nbytes <= MAX_BYTES:
        raise ValueError(f"a peer announced an object of {nbytes} bytes: 1 to {MAX_BYTES} may be")
    return nbytes
