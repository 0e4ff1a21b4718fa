"""Handles: Python objects that refer to an object of MPI, or to none."""

import importlib
import itertools
import weakref
from typing import Any, Self

_by_number: "weakref.WeakValueDictionary[int, Handle]" = weakref.WeakValueDictionary()
"""Handles that were asked for their numbers."""

_numbers = itertools.count(1 << 10)


class Handle:
    """A reference to an object of MPI; null: to none. Handles of one object are equal."""

    _builtin = ""
    """Name in the standard of the object, if that exists from the beginning."""
    _is_constant = False
    """Whether this is the handle of that name itself, and not a copy."""
    _number = 0

    __hash__ = None  # type: ignore[assignment]

    def __new__(cls, other: "Handle | None" = None) -> Self:
        if other is not None and not isinstance(other, find_family(cls)):
            raise TypeError(f"expected a {find_family(cls).__name__}, not {type(other).__name__}")
        self = super().__new__(cls)
        if other is not None:
            self.__dict__.update(other.__dict__)
            self.__dict__.pop("_is_constant", None)
        return self

    def _identity(self) -> object:
        """Return what tells its object from others of its family; None: null."""
        raise NotImplementedError

    @property
    def _is_null(self) -> bool:
        return self._identity() is None

    @property
    def _is_predefined(self) -> bool:
        return bool(self._builtin)

    def _name_constant(self, name: str) -> Self:
        """Make this the handle of a name of the standard; return it."""
        self._builtin, self._is_constant = name, True
        return self

    def _make_null(self) -> None:
        """Let this handle refer to nothing."""
        fresh = find_family(type(self)).__new__(type(self))
        self.__dict__.clear()
        self.__dict__.update(fresh.__dict__)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, find_family(type(self))):
            return NotImplemented
        mine, theirs = self._identity(), other._identity()
        return mine is theirs or (mine is not None and theirs is not None and mine == theirs)

    def __bool__(self) -> bool:
        return not self._is_null

    def __reduce__(self) -> Any:
        if self._is_constant:
            return load_constant, (self._builtin,)
        if self._is_null:
            return type(self), ()
        if self._builtin:
            return _copy_constant, (type(self), self._builtin)
        return self._reduce()

    def _reduce(self) -> Any:
        raise ValueError(
            f"cannot pickle this {find_family(type(self)).__name__}: it exists in this process"
        )

    def free(self) -> None:
        """Free the object, unless it is null or predefined; a copy of such a handle gets null."""
        if self._is_null or self._is_constant:
            return
        if self._builtin:
            self._make_null()
        else:
            self._free()

    def _free(self) -> None:
        self.Free()  # type: ignore[attr-defined]

    @property
    def handle(self) -> int:
        """Number of the object, in this process; 0: null."""
        if self._is_null:
            return 0
        if not self._number:
            self._number = next(_numbers)
        if self._number not in _by_number:
            _by_number[self._number] = self
        return self._number

    @classmethod
    def fromhandle(cls, handle: int) -> Self:
        """Return a handle of the object with that number."""
        found = _by_number.get(handle)
        if handle == 0 or found is None:
            return cls()
        return (cls if issubclass(cls, type(found)) else type(found))(found)  # type: ignore[return-value]

    def toint(self) -> int:
        """Return the number of the object."""
        return self.handle

    @classmethod
    def fromint(cls, arg: int, /) -> Self:
        """Return a handle of the object with that number."""
        return cls.fromhandle(arg)

    def py2f(self) -> int:
        """Return the number of the object, as Fortran would have it."""
        return self.handle

    @classmethod
    def f2py(cls, arg: int) -> Self:
        """Return a handle of the object with that number."""
        return cls.fromhandle(arg)


_families: dict[type, type[Handle]] = {}


def find_family(cls: type[Handle]) -> type[Handle]:
    """Return the class of which handles are compared with those of a class: Comm, Request."""
    family = _families.get(cls)
    if family is None:
        family = next(one for one in cls.__mro__ if Handle in one.__bases__)
        _families[cls] = family
    return family


def load_constant(name: str) -> Any:
    """Return the constant of that name."""
    return getattr(importlib.import_module("allhands.mpi.MPI"), name)


def _copy_constant(cls: type[Handle], name: str) -> Handle:
    """Return another handle of a constant's object."""
    return cls(load_constant(name))
