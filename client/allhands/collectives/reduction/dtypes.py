"""Traits of dtypes in reductions."""

from functools import lru_cache
from typing import Any, Final, Literal

import numpy as np

from allhands_proto.quick_dataclass import dataclass

Dtype = np.dtype[np.generic]
Kind = Literal["bool", "integer", "float", "complex"]

TYPES: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2"),
)
"""Names of the dtypes that reductions take; the native core knows them by their place here."""

_ML_DTYPES: Final = frozenset({("bfloat16", 2), ("float8_e4m3fn", 1), ("float8_e5m2", 1)})
"""Those that ml_dtypes adds to NumPy, and their size."""
_BUILT_IN: Final = {
    np.dtype(name): name for name in TYPES if name not in {added for added, _ in _ML_DTYPES}
}
_NARROW: Final = frozenset({"float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"})


@dataclass(frozen=True, slots=True)
class Traits:
    """Traits of a dtype of `TYPES`."""

    name: str
    kind: Kind
    """What arithmetic is defined for it."""
    is_narrow: bool
    """Whether it is a float that is combined in float32."""


@lru_cache(maxsize=256)
def get_traits(dtype: Dtype) -> Traits | None:
    """Return a dtype's traits; None: not in `TYPES`, or of another byte order."""
    # Dtypes may be equal and not the same, as with metadata. Those that were added NumPy counts
    # among no kind, or among floats: by version.
    name = _BUILT_IN.get(dtype)
    if name is None and dtype.isnative and (dtype.name, dtype.itemsize) in _ML_DTYPES:
        name = dtype.name
    if name is None:
        return None
    return Traits(name, _get_kind(name), name in _NARROW)


def get_dtype_name(dtype: Dtype) -> str | None:
    """Return the name of a dtype among `TYPES`; None: it is another, or of another byte order."""
    found = get_traits(dtype)
    return None if found is None else found.name


def is_narrow(dtype: Dtype) -> bool:
    """Return whether a dtype is a float that is combined in float32."""
    found = get_traits(dtype)
    return found is not None and found.is_narrow


def _get_kind(name: str) -> Kind:
    if name == "bool":
        return "bool"
    if "float" in name:
        return "float"
    return "complex" if name.startswith("complex") else "integer"


def is_pair(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype has two fields: a real number and its integer index."""
    if dtype.names is None or len(dtype.names) != 2:
        return False
    value, index = (get_traits(dtype[name]) for name in dtype.names)
    if value is None or index is None:
        return False
    return value.kind != "complex" and index.kind == "integer"
