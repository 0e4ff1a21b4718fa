"""Constants that stand for buffers."""

import operator
from typing import Any


class _Special(bytes):
    """A constant that is equal to others of its kind, and to its number."""

    _name = ""
    _value = 0

    def __bool__(self) -> bool:
        return self._value != 0

    def __int__(self) -> int:
        return self._value

    def __index__(self) -> int:
        return self._value

    def __hash__(self) -> int:
        return self._value

    def __eq__(self, other: object) -> bool:
        if isinstance(other, type(self)):
            return True
        try:
            return self._value == operator.index(other)  # type: ignore[arg-type]
        except TypeError:
            return NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        return self._name

    def __reduce__(self) -> Any:
        from allhands.mpi.handles import load_constant

        return load_constant, (self._name,)


class BottomType(_Special):
    """Kind of `BOTTOM`."""

    _name = "BOTTOM"


class InPlaceType(_Special):
    """Kind of `IN_PLACE`."""

    _name = "IN_PLACE"
    _value = 1


class BufferAutomaticType(_Special):
    """Kind of `BUFFER_AUTOMATIC`."""

    _name = "BUFFER_AUTOMATIC"
    _value = 2


BOTTOM = BottomType()
"""Address 0: datatypes say where the data is."""
IN_PLACE = InPlaceType()
"""What this rank brings is where its result goes."""
BUFFER_AUTOMATIC = BufferAutomaticType()
"""Buffered sends take as much memory as they need."""


def is_in_place(obj: Any) -> bool:
    """Say whether a buffer is IN_PLACE, as None is too."""
    return obj is None or isinstance(obj, InPlaceType)


def is_bottom(obj: Any) -> bool:
    """Say whether a buffer is BOTTOM, as None is too."""
    return obj is None or isinstance(obj, BottomType)
