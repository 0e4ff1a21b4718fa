"""Portable names of dtypes, equal in every process."""

import ast
from functools import lru_cache
from typing import Any, Final

import numpy as np

EXTENSIONS = "ml_dtypes"
"""Where dtypes are from that NumPy knows no way to name."""
_PREFIX = EXTENSIONS + "."
_SHORT_NAME: Final = 32
"""Length of names that are remembered: what a peer sends takes no more room here."""


@lru_cache(maxsize=256)
def get_dtype_name(dtype: "np.dtype[Any]") -> str:
    """Return a name from which `parse_dtype` makes the dtype.

    Raises:
        TypeError: the dtype holds Python objects, or is unknown to other processes.
    """
    if dtype.hasobject:
        raise TypeError(f"{dtype} arrays hold Python objects, which do not travel as arrays")
    if dtype.isbuiltin == 2:
        if dtype.type.__module__ != EXTENSIONS:
            raise TypeError(f"{dtype} of {dtype.type.__module__} is not known to other processes")
        return _PREFIX + dtype.name
    if dtype.isbuiltin == 1:
        return dtype.str  # as below, in a tenth of the time
    described: object = np.lib.format.dtype_to_descr(dtype)
    return described if isinstance(described, str) else repr(described)


def parse_dtype(name: str) -> "np.dtype[Any]":
    """Return the dtype with a portable name.

    Raises:
        ValueError: there is none of that name, or none that may be sent.
        ModuleNotFoundError: it is one of a package that is not installed here.
    """
    return _parse_short(name) if len(name) <= _SHORT_NAME else _parse(name)


@lru_cache(maxsize=256)
def _parse_short(name: str) -> "np.dtype[Any]":
    return _parse(name)


def _parse(name: str) -> "np.dtype[Any]":
    if name.startswith(_PREFIX):
        import ml_dtypes

        found = getattr(ml_dtypes, name.removeprefix(_PREFIX), None)
        if not isinstance(found, type) or not issubclass(found, np.generic):
            raise ValueError(f"{name!r} is no dtype")
        return np.dtype(found)
    try:
        described: Any = ast.literal_eval(name) if name.startswith(("[", "(", "{")) else name
        dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(described)
    except (SyntaxError, TypeError, ValueError) as error:
        raise ValueError(f"{name!r} is no dtype") from error
    if dtype.hasobject:
        raise ValueError(f"{name!r} is a dtype of Python objects")
    return dtype
