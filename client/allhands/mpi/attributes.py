"""Attributes: values that a program keeps at communicators, datatypes and windows by key."""

import traceback
from collections.abc import Callable
from typing import Any

from allhands.mpi import errors
from allhands.mpi.constants import ERR_KEYVAL, ERR_OTHER, KEYVAL_INVALID
from allhands.mpi.handles import Handle, find_family
from allhands.mpi.runtime import runtime
from allhands_proto.quick_dataclass import dataclass

_FIRST_KEYVAL = 100


@dataclass(frozen=True, slots=True)
class _Key:
    """What a program said of a key."""

    copy_fn: "Callable[[Any, int, Any], Any] | bool | None"
    delete_fn: "Callable[[Any, int, Any], None] | bool | None"
    nopython: bool


def _keys(cls: type) -> dict[int, _Key]:
    family = find_family(cls) if issubclass(cls, Handle) else cls
    keys: dict[int, _Key] = runtime.storage.setdefault(f"keys of {family.__name__}", {})
    return keys


class HasAttributes:
    """An object with attributes; mixin."""

    _attributes: dict[int, Any] | None = None

    @classmethod
    def Create_keyval(
        cls,
        copy_fn: Callable[[Any, int, Any], Any] | bool | None = None,
        delete_fn: Callable[[Any, int, Any], None] | bool | None = None,
        nopython: bool = False,
    ) -> int:
        """Return a new key.

        Args:
            copy_fn: gets the object, key and value when the object is duplicated, and returns the
                copy's value, or NotImplemented; True: the value itself; False, None: none.
            delete_fn: gets the same when the value is deleted or replaced.
            nopython: values are numbers.
        """
        keys = _keys(cls)
        number = runtime.storage.setdefault("next key", _FIRST_KEYVAL)
        runtime.storage["next key"] = number + 1
        keys[number] = _Key(copy_fn or None, None if delete_fn is True else delete_fn, nopython)
        return int(number)

    @classmethod
    def Free_keyval(cls, keyval: int) -> int:
        """Free a key; return KEYVAL_INVALID."""
        if _keys(cls).pop(keyval, None) is None:
            raise errors.make_error(ERR_KEYVAL, f"{keyval} is no key")
        return KEYVAL_INVALID

    def _predefined_attribute(self, keyval: int) -> Any:
        """Return the value of a key of the standard; None: there is none."""
        return None

    def Get_attr(self, keyval: int) -> Any:
        """Return the value of a key; None: it has none."""
        self._check_attributes()
        if keyval < _FIRST_KEYVAL and keyval != KEYVAL_INVALID:
            return self._predefined_attribute(keyval)
        self._find_key(keyval)
        return None if self._attributes is None else self._attributes.get(keyval)

    def Set_attr(self, keyval: int, attrval: Any) -> None:
        """Set the value of a key."""
        self._check_attributes()
        self._find_key(keyval)
        if self._attributes is None:
            self._attributes = {}
        if keyval in self._attributes:
            self.Delete_attr(keyval)
        self._attributes[keyval] = attrval

    def Delete_attr(self, keyval: int) -> None:
        """Delete the value of a key."""
        self._check_attributes()
        key = self._find_key(keyval)
        if self._attributes is None or keyval not in self._attributes:
            raise errors.make_error(ERR_KEYVAL, f"key {keyval} has no value here")
        value = self._attributes[keyval]
        if callable(key.delete_fn):
            self._call(key.delete_fn, keyval, value)
        del self._attributes[keyval]

    def copy_attributes_to(self, other: Any) -> None:
        """Give a duplicate the attributes that are copied."""
        other._attributes = None
        for keyval, value in (self._attributes or {}).items():
            key = _keys(type(self)).get(keyval)
            if key is None or key.copy_fn is None:
                continue
            copied = value if key.copy_fn is True else self._call(key.copy_fn, keyval, value)
            if copied is not NotImplemented:
                other._attributes = (other._attributes or {}) | {keyval: copied}

    def delete_attributes(self) -> None:
        """Delete all values, last first."""
        for keyval in reversed(self._attributes or {}):
            key = _keys(type(self)).get(keyval)
            if key is not None and callable(key.delete_fn):
                assert self._attributes is not None
                self._call(key.delete_fn, keyval, self._attributes[keyval])
        self._attributes = None

    def _check_attributes(self) -> None:
        """Raise if the object is null."""

    def _find_key(self, keyval: int) -> _Key:
        key = _keys(type(self)).get(keyval)
        if key is None:
            raise errors.make_error(ERR_KEYVAL, f"{keyval} is no key of {type(self).__name__}")
        return key

    def _call(self, function: Any, keyval: int, value: Any) -> Any:
        try:
            return function(self, keyval, value)
        except Exception as error:
            traceback.print_exc()
            raise errors.make_error(
                ERR_OTHER, f"a function of attribute {keyval} raised {type(error).__name__}"
            ) from error
