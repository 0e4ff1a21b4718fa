"""The memory of tensors, as arrays.

Not by `Tensor.numpy`: PyTorch then takes the memory to be NumPy's, and refuses ever after to resize
it, as FSDP and PowerSGD do between their calls.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch

from allhands.engine.arguments import AnyArray

_KNOWN: Final[Mapping[Any, str]] = MappingProxyType(
    {
        getattr(torch, name): np.dtype(known).str
        for name, known in (
            ("bool", np.bool_),
            *((name, name) for name in ("uint8", "uint16", "uint32", "uint64")),
            *((name, name) for name in ("int8", "int16", "int32", "int64")),
            *((name, name) for name in ("float16", "float32", "float64")),
            *((name, name) for name in ("complex64", "complex128")),
        )
    }
)


class _Memory:
    """What NumPy asks where an array's elements are, and keeps alive for as long as the array."""

    __slots__ = ("__array_interface__", "tensor")

    def __init__(self, tensor: Any, kind: str) -> None:
        self.tensor = tensor
        self.__array_interface__ = {
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "typestr": kind,
            "version": 3,
        }


def shared(tensor: Any) -> AnyArray:
    """Return the elements of a contiguous tensor in host memory, as an array that keeps it alive.

    Raises:
        TypeError: NumPy has no such elements.
    """
    if (kind := _KNOWN.get(tensor.dtype)) is None:
        raise TypeError(f"no array has elements of {tensor.dtype}")
    found: AnyArray = np.asarray(_Memory(tensor, kind))
    return found
