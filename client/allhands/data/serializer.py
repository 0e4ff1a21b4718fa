"""Serialization of objects: known types by the codec, the rest by pickle if allowed."""

import pickle
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from allhands.data.codec import DataclassRegistry, decode, encode

UInt8Array = NDArray[np.uint8]

MAX_BYTES: Final = 4 << 30
"""Of one object, as it travels."""
_TYPED, _PICKLED = 0, 1


class ObjectSerializer:
    """How objects become bytes on a group."""

    def __init__(self, types: DataclassRegistry, allow_pickle: bool = False) -> None:
        self.types = types
        self.allow_pickle = allow_pickle
        """Whether what `types` do not cover is pickled; who unpickles runs what a peer sent."""

    def encode(self, value: object) -> UInt8Array:
        """Return the bytes of an object.

        Raises:
            TypeError: of a type that does not travel here.
            ValueError: too large, or too deep in itself.
        """
        try:
            data = bytes([_TYPED]) + encode(value, self.types)
        except TypeError:
            if not self.allow_pickle:
                raise
            data = bytes([_PICKLED]) + pickle.dumps(value)
        if len(data) > MAX_BYTES:
            raise ValueError(f"the object takes {len(data)} bytes, and {MAX_BYTES} may travel")
        return np.frombuffer(data, np.uint8)

    def decode(self, data: UInt8Array) -> Any:
        """Decode an object received from a peer.

        Raises:
            ValueError: it is none, or pickled where that is not allowed.
        """
        if not len(data):
            raise ValueError("what came is no object: it has no bytes")
        match int(data[0]):
            case 0:
                return decode(data[1:].data, self.types)
            case 1 if self.allow_pickle:  # who makes such a group trusts its ranks
                return pickle.loads(data[1:].tobytes())  # noqa: S301
            case 1:
                raise ValueError(
                    "a peer sent a pickled object, and this rank's group does not allow that: "
                    "make it with allow_pickle=True on every rank if you trust all of them"
                )
            case kind:
                raise ValueError(f"what came is no object: it is of kind {kind}")


def check_size(nbytes: int) -> int:
    """Return a peer's announced object size, in bytes, if within the limit."""
    if not 0 < nbytes <= MAX_BYTES:
        raise ValueError(f"a peer announced an object of {nbytes} bytes: 1 to {MAX_BYTES} may be")
    return nbytes
