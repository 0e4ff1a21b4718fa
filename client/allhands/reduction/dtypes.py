"""What a dtype is to reductions."""

from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

Dtype = np.dtype[np.generic]
Kind = Literal["bool", "integer", "float", "complex"]

TYPES: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2"),
)
"""Names of the dtypes that reductions take; the native core knows them by their place here."""

_ADDED: Final = frozenset({("bfloat16", 2), ("float8_e4m3fn", 1), ("float8_e5m2", 1)})
"""Those that ml_dtypes adds to NumPy, and their size."""
_BUILT_IN: Final = {
    np.dtype(name): name for name in TYPES if (name, 2) not in _ADDED and (name, 1) not in _ADDED
}
_NARROW: Final = frozenset({"float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"})


def name_of(dtype: npt.DTypeLike) -> str | None:
    """Return the name of a dtype among `TYPES`; None: it is another, or of another byte order."""
    found = np.dtype(dtype)
    if (name := _BUILT_IN.get(found)) is not None:
        return name
    # NumPy counts those that were added among no kind, or among floats: by version.
    if found.isbuiltin == 2 and (found.name, found.itemsize) in _ADDED:
        return found.name
    return None


def kind_of(name: str) -> Kind:
    """Return what arithmetic is defined for one of `TYPES`."""
    if name == "bool":
        return "bool"
    if "float" in name:
        return "float"
    return "complex" if name.startswith("complex") else "integer"


def is_narrow(dtype: Dtype) -> bool:
    """Say whether it is a float that is combined in float32."""
    return name_of(dtype) in _NARROW


def is_pair(dtype: np.dtype[Any]) -> bool:
    """Say whether it has two fields: a real number, and an integer that says where it was."""
    if dtype.names is None or len(dtype.names) != 2:
        return False
    value, index = (name_of(dtype[name]) for name in dtype.names)
    return (
        value is not None
        and kind_of(value) != "complex"
        and index is not None
        and kind_of(index) == "integer"
    )
