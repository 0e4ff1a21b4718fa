"""Info: texts by key, in the order in which they were set."""

import os
import platform
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Self

from allhands.mpi import errors
from allhands.mpi.constants import (
    ERR_ARG,
    ERR_INFO,
    ERR_INFO_KEY,
    ERR_INFO_NOKEY,
    ERR_INFO_VALUE,
    MAX_INFO_KEY,
    MAX_INFO_VAL,
)
from allhands.mpi.handles import Handle

Items = "Info | Mapping[str, str] | Iterable[tuple[str, str]]"


class Info(Handle):
    """Texts by key; also a mapping."""

    _items: dict[str, str] | None

    def __new__(cls, info: "Info | None" = None) -> Self:
        self = super().__new__(cls, info)
        if info is None:
            self._items = None
        return self

    def _identity(self) -> object:
        return None if self._items is None else id(self._items)

    def _reduce(self) -> Any:
        return type(self).Create, (self.items(),)

    @classmethod
    def Create(cls, items: Any = None) -> Self:
        """Return a new info with some items."""
        self = cls.__new__(cls)
        self._items = {}
        if items is not None:
            self.update(items)
        return self

    @classmethod
    def Create_env(cls, args: Sequence[str] | None = None) -> Self:
        """Return an info about the environment of this process."""
        given = list(sys.argv if args is None else args)
        items = {"arch": platform.machine(), "host": platform.node(), "wdir": os.getcwd()}
        if given:
            items |= {"command": given[0], "argv": " ".join(given[1:])}
        return cls.Create({key: value[:MAX_INFO_VAL] for key, value in items.items() if value})

    def _found(self) -> dict[str, str]:
        if self._items is None:
            raise errors.make_error(ERR_INFO, "the info is null")
        return self._items

    def Free(self) -> None:
        """Free it."""
        self._found()
        if self._builtin:
            raise errors.make_error(ERR_INFO, f"{self._builtin} cannot be freed")
        self._make_null()

    def Dup(self) -> Self:
        """Return a copy."""
        return type(self).Create(dict(self._found()))

    def Get(self, key: str) -> str | None:
        """Return the value of a key; None: it has none."""
        return self._found().get(_check_key(key))

    def Set(self, key: str, value: str) -> None:
        """Set the value of a key."""
        items = self._found()
        if not isinstance(value, str):
            raise TypeError(f"a value of an info is a str, not {type(value).__name__}")
        if len(value) > MAX_INFO_VAL:
            raise errors.make_error(ERR_INFO_VALUE, f"the value has over {MAX_INFO_VAL} characters")
        items[_check_key(key)] = value

    def Delete(self, key: str) -> None:
        """Delete a key."""
        if self._found().pop(_check_key(key), None) is None:
            raise errors.make_error(ERR_INFO_NOKEY, f"there is no key {key!r}")

    def Get_nkeys(self) -> int:
        """Return the number of keys."""
        return len(self._found())

    def Get_nthkey(self, n: int) -> str:
        """Return a key by its place."""
        keys = list(self._found())
        if not 0 <= n < len(keys):
            raise errors.make_error(ERR_ARG, f"there is no key number {n}: there are {len(keys)}")
        return keys[n]

    def __len__(self) -> int:
        return len(self._items or ())

    def __contains__(self, key: str) -> bool:
        return key in (self._items or ())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __getitem__(self, key: str) -> str:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: str, value: str) -> None:
        if self._items is None:
            raise KeyError(key)
        self.Set(key, value)

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self.Delete(key)

    def get(self, key: str, default: str | None = None) -> str | None:
        """Return the value of a key, or the default."""
        return default if self._items is None else self._items.get(key, default)

    def keys(self) -> list[str]:
        """Return the keys."""
        return list(self._items or ())

    def values(self) -> list[str]:
        """Return the values."""
        return list((self._items or {}).values())

    def items(self) -> list[tuple[str, str]]:
        """Return the keys with their values."""
        return list((self._items or {}).items())

    def update(self, items: Any = (), **kwds: str) -> None:
        """Set several values."""
        if self._items is None:
            raise KeyError("the info is null")
        if hasattr(items, "keys"):
            keys = items.keys()
            items = [(key, items[key]) for key in keys]
        for key, value in (*items, *kwds.items()):
            self.Set(key, value)

    def pop(self, key: str, *default: str) -> str:
        """Delete a key; return its value, or the default."""
        value = self.get(key)
        if value is not None:
            self.Delete(key)
            return value
        if default:
            (only,) = default
            return only
        raise KeyError(key)

    def popitem(self) -> tuple[str, str]:
        """Delete the last key; return it with its value."""
        if not self._items:
            raise KeyError("the info is empty")
        return self._items.popitem()

    def copy(self) -> Self:
        """Return a copy."""
        return type(self)() if self._items is None else self.Dup()

    def clear(self) -> None:
        """Delete all keys."""
        if self._items is not None:
            self._items.clear()


def _check_key(key: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a key of an info is a str, not {type(key).__name__}")
    if not 0 < len(key) <= MAX_INFO_KEY:
        raise errors.make_error(ERR_INFO_KEY, f"a key has 1 to {MAX_INFO_KEY} characters")
    return key


INFO_NULL = Info()._name_constant("INFO_NULL")
"""The null info."""
INFO_ENV = Info.Create_env()._name_constant("INFO_ENV")
"""About the environment of this process."""
