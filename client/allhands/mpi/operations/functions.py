"""The operations of the standard: on two objects, and on packed arrays. Pure."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from allhands_proto.quick_dataclass import dataclass

Function = Callable[[Any, Any], Any]
ArrayFunction = Callable[[Any, Any], Any]
"""Gets two arrays, and returns their combination."""


@dataclass(frozen=True, slots=True)
class Standard:
    """An operation of the standard."""

    name: str
    function: Function
    """On two objects."""
    arrays: ArrayFunction | None
    """On numbers of NumPy; None: on values with an index."""
    kinds: str
    """Kinds of dtypes that it is for."""
    native: str = ""
    """Name of the operation in allhands; "": there is none."""


def _max(x: Any, y: Any) -> Any:
    return y if y > x else x


def _min(x: Any, y: Any) -> Any:
    return y if y < x else x


def _choose(x: Any, y: Any, is_better: Function) -> Any:
    """Return the better of two values with an index; of equal ones that with the lower index."""
    (u, i), (v, j) = x, y
    if is_better(u, v):
        return u, i
    if is_better(v, u) or j < i:
        return v, j
    return u, i


def _logical(function: Any) -> ArrayFunction:
    """Return a logical operation, whose results are 0 and 1 of the dtype."""

    def apply(left: Any, right: Any) -> Any:
        return function(left != 0, right != 0).astype(right.dtype)

    return apply


STANDARD = (
    Standard("MAX", _max, np.maximum, "iuf", "max"),
    Standard("MIN", _min, np.minimum, "iuf", "min"),
    Standard("SUM", operator.add, np.add, "iufc", "sum"),
    Standard("PROD", operator.mul, np.multiply, "iufc", "product"),
    Standard("LAND", lambda x, y: bool(x) & bool(y), _logical(np.logical_and), "iubf"),
    Standard("BAND", operator.and_, np.bitwise_and, "iub", "band"),
    Standard("LOR", lambda x, y: bool(x) | bool(y), _logical(np.logical_or), "iubf"),
    Standard("BOR", operator.or_, np.bitwise_or, "iub", "bor"),
    Standard("LXOR", lambda x, y: bool(x) ^ bool(y), _logical(np.logical_xor), "iubf"),
    Standard("BXOR", operator.xor, np.bitwise_xor, "iub", "bxor"),
    Standard("MAXLOC", lambda x, y: _choose(x, y, operator.gt), None, ""),
    Standard("MINLOC", lambda x, y: _choose(x, y, operator.lt), None, ""),
    Standard("REPLACE", lambda x, y: y, lambda left, right: left, "iufcbV"),
    Standard("NO_OP", lambda x, y: x, lambda left, right: right, "iufcbV"),
)
"""REPLACE keeps what comes, NO_OP what is there: the second array of `arrays` is the latter."""


def choose_pairs(left: Any, right: Any, name: str) -> Any:
    """Return the better of values with an index, element by element."""
    mine, theirs = left["value"], right["value"]
    is_better = mine > theirs if name == "MAXLOC" else mine < theirs
    is_first = (mine == theirs) & (left["index"] < right["index"])
    return np.where(is_better | is_first, left, right)
