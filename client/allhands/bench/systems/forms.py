"""Forms of a call that are alike in every system, given the system's own functions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from allhands.bench.case import BenchCase
from allhands.bench.data import Array
from allhands.bench.systems.system import BoundCall, Call, Unsupported

OBJECT_NAME = "node-0"
"""A text in each small object, as real ones have."""
_MAX_DICT_BYTES = 1 << 10


def bind_one_by_one(reduce: Callable[[Any], object], parts: Sequence[Any]) -> Call:
    """Return a call that reduces many arrays, each by a call of its own."""

    def call() -> None:
        for part in parts:
            reduce(part)

    return call


def bind_packed(reduce: Callable[[Any], object], parts: Sequence[Array], buffer: Any) -> Call:
    """Return a call that packs many arrays into one by hand, reduces that, and unpacks it.

    `buffer` is the array, or a tensor over its memory; `parts` are arrays.
    """
    packed = np.asarray(buffer)
    places = np.split(packed, len(parts))

    def call() -> None:
        np.concatenate(parts, out=packed)
        reduce(buffer)
        for part, place in zip(parts, places, strict=True):
            part[:] = place

    return call


def bind_object(
    case: BenchCase, x: Array, exchange: Callable[[object], Sequence[Any]]
) -> BoundCall:
    """Return the call of an exchange of objects: a dict of numbers if small, else the array."""
    if case.nbytes >= _MAX_DICT_BYTES:
        return BoundCall(lambda: exchange(x), lambda given: np.concatenate(list(given)))
    numbers: dict[str, object] = {"name": OBJECT_NAME, "step": 7}

    def refresh() -> None:
        numbers["values"] = x.tolist()

    def read(given: Sequence[Mapping[str, Any]]) -> Array:
        if any((one["name"], one["step"]) != (OBJECT_NAME, 7) for one in given):
            return np.empty(0, x.dtype)  # no result of any case
        return np.array([value for one in given for value in one["values"]], x.dtype)

    return BoundCall(lambda: exchange(numbers), read, refresh)


def refuse(system: str, operation: str) -> Unsupported:
    return Unsupported(f"{system} is not measured on {operation}")
