"""Error handlers: what communicators, windows, files and sessions do with errors that are told.

Calls of this interface raise their errors; a handler is called where a program calls it itself.
"""

import os
import sys
from collections.abc import Callable
from typing import Any, Self

from allhands.mpi import errors
from allhands.mpi.constants import ERR_ERRHANDLER, SUCCESS
from allhands.mpi.handles import Handle, find_family
from allhands.mpi.runtime import runtime

_MOST_HANDLERS = 32
"""Handlers of a program at a time, as in mpi4py, for each kind of object."""


class Errhandler(Handle):
    """A handler of errors."""

    _function: "Callable[[Any, int], None] | str | None"
    _owner: type | None

    def __new__(cls, errhandler: "Errhandler | None" = None) -> Self:
        self = super().__new__(cls, errhandler)
        if errhandler is None:
            self._function = self._owner = None
        return self

    @classmethod
    def _of(cls, function: "Callable[[Any, int], None] | str", owner: type | None = None) -> Self:
        self = cls.__new__(cls)
        self._function = function
        self._owner = owner
        return self

    def _identity(self) -> object:
        return self._function

    def Free(self) -> None:
        """Make the handle null; objects that have the handler keep it."""
        if self._function is None:
            raise errors.make_error(ERR_ERRHANDLER, "a null error handler cannot be freed")
        if not self._is_constant:
            if self._owner is not None and not self._builtin:
                _made(self._owner).discard(id(self._function))
            self._make_null()

    def _call(self, owner: Any, code: int) -> None:
        function = self._function
        if callable(function):
            function(owner, code)
        elif function in ("abort", "abort all") and code != SUCCESS:
            sys.stderr.write(f"{errors.Get_error_string(code)}\n")
            os._exit(1)


def _made(owner: type) -> set[int]:
    """Return the handlers that exist for a kind of object."""
    made: set[int] = runtime.storage.setdefault(f"error handlers {owner.__name__}", set())
    return made


class HasErrhandler:
    """An object with an error handler; mixin."""

    _errhandler: Errhandler | None = None

    @classmethod
    def Create_errhandler(cls, errhandler_fn: Callable[[Any, int], None]) -> Errhandler:
        """Return a handler that calls a function with the object and the code.

        Raises:
            RuntimeError: there are 32 already.
        """
        owner = find_family(cls) if issubclass(cls, Handle) else cls
        made = _made(owner)
        if len(made) >= _MOST_HANDLERS:
            raise RuntimeError(
                f"there are {_MOST_HANDLERS} error handlers of {owner.__name__} already: Free some"
            )
        made.add(id(errhandler_fn))
        return Errhandler._of(errhandler_fn, owner)

    def _check_errhandler(self) -> None:
        """Raise if the object is null, and cannot have a handler then."""

    def Get_errhandler(self) -> Errhandler:
        """Return the handler."""
        self._check_errhandler()
        return Errhandler(self._errhandler or ERRORS_RETURN)

    def Set_errhandler(self, errhandler: Errhandler) -> None:
        """Set the handler."""
        self._check_errhandler()
        if not errhandler:
            raise errors.make_error(ERR_ERRHANDLER, "the error handler is null")
        self._errhandler = Errhandler(errhandler)

    def Call_errhandler(self, errorcode: int) -> None:
        """Call the handler with a code; nothing happens with SUCCESS."""
        self._check_errhandler()
        if errorcode != SUCCESS:
            (self._errhandler or ERRORS_RETURN)._call(self, errorcode)


ERRHANDLER_NULL = Errhandler()._name_constant("ERRHANDLER_NULL")
"""The null handler."""
ERRORS_RETURN = Errhandler._of("return")._name_constant("ERRORS_RETURN")
"""Calls raise their errors."""
ERRORS_ABORT = Errhandler._of("abort")._name_constant("ERRORS_ABORT")
"""The process ends."""
ERRORS_ARE_FATAL = Errhandler._of("abort all")._name_constant("ERRORS_ARE_FATAL")
"""All processes end."""
