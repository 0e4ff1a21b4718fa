"""NumPy's dtypes of the elements of tensors.

What NumPy has no numbers for is a record, which travels and is not combined.
"""

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch

from allhands.collectives.arguments import AnyArray

_NAMES: Final = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_RECORDS: Final[Mapping[Any, Any]] = MappingProxyType(
    {
        torch.complex32: [("real", np.float16), ("imag", np.float16)],
        torch.float4_e2m1fn_x2: [("float4_e2m1fn_x2", np.uint8)],
    }
)
_ML_DTYPES: Final[Mapping[Any, str]] = MappingProxyType(
    {
        getattr(torch, name): name
        for name in (
            *("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
            "float8_e8m0fnu",
        )
    }
)

_NUMPY_DTYPES: Final[Mapping[Any, Any]] = MappingProxyType(
    {**{getattr(torch, name): name for name in _NAMES}, **_RECORDS}
)


@functools.cache
def find_dtype(dtype: Any) -> "np.dtype[Any] | None":
    """Return the dtype of arrays of a tensor's elements; None: there is none."""
    kind = _NUMPY_DTYPES.get(dtype)
    if (name := _ML_DTYPES.get(dtype)) is not None:
        import ml_dtypes  # a megabyte, for those that have such tensors

        kind = getattr(ml_dtypes, name)
    return None if kind is None else np.dtype(kind)


def to_tensor(array: AnyArray) -> Any:
    """Return a tensor over the memory of an array."""
    if array.dtype.isbuiltin != 1:
        for dtype in (*_RECORDS, *_ML_DTYPES):
            if array.dtype == find_dtype(dtype):
                return torch.from_numpy(array.view(f"i{array.itemsize}")).view(dtype)
    return torch.from_numpy(array)
