"""Errors of MPI: the exception that calls raise, error classes and codes, and their texts.

A program may add classes, codes and texts; allhands' own errors become exceptions of a fitting
class that keep their words.
"""

from typing import Any

from allhands import errors as allhands_errors
from allhands.mpi import constants
from allhands.mpi.constants import (
    ERR_ARG,
    ERR_LASTCODE,
    ERR_OTHER,
    ERR_PROC_FAILED,
    ERR_REVOKED,
    ERR_UNKNOWN,
    SUCCESS,
)

_RuntimeError = RuntimeError

_TEXTS = {
    "SUCCESS": "no error",
    "BUFFER": "invalid buffer",
    "COUNT": "invalid count",
    "TYPE": "invalid datatype",
    "TAG": "invalid tag",
    "COMM": "invalid communicator",
    "RANK": "invalid rank",
    "REQUEST": "invalid request",
    "ROOT": "invalid root",
    "GROUP": "invalid group",
    "OP": "invalid reduction operation, or not for this datatype",
    "TOPOLOGY": "invalid topology",
    "DIMS": "invalid dimensions",
    "ARG": "invalid argument",
    "TRUNCATE": "a message is longer than its receive has room for",
    "OTHER": "the call failed",
    "INTERN": "an error inside",
    "IN_STATUS": "see the errors of the statuses",
    "PENDING": "the request is under way",
    "PROC_FAILED": "a rank was lost",
    "PROC_FAILED_PENDING": "a rank was lost that may have been meant",
    "REVOKED": "the communicator was revoked",
    "NO_SUCH_FILE": "no such file",
    "FILE_EXISTS": "the file exists",
    "ACCESS": "no permission",
    "RMA_RANGE": "not within the window",
    "RMA_SYNC": "wrong synchronization of a window",
}
_CLASSES = {
    value: name.removeprefix("ERR_")
    for name, value in vars(constants).items()
    if name == "SUCCESS" or (name.startswith("ERR_") and name != "ERR_LASTCODE")
}


class _Added:
    """Classes, codes and texts that the program has added."""

    def __init__(self) -> None:
        self.classes: set[int] = set()
        self.codes: dict[int, int] = {}
        self.texts: dict[int, str] = {}
        self.last = ERR_LASTCODE

    def take(self) -> int:
        self.last += 1
        return self.last


_added = _Added()


class Exception(_RuntimeError):
    """The error of a call of MPI: a number, compared as such, with a text."""

    def __init__(self, ierr: int = SUCCESS, /, text: str = "") -> None:
        """Make an error of a class or code; without a text it has that of its class."""
        super().__init__(ERR_UNKNOWN if ierr < SUCCESS else ierr)
        self._text = text

    def __int__(self) -> int:
        return int(self.args[0])

    def __bool__(self) -> bool:
        return int(self) != SUCCESS

    def __hash__(self) -> int:
        return hash(int(self))

    def __eq__(self, other: object) -> bool:
        return int(self) == (int(other) if isinstance(other, Exception) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        return int(self) < int(other)

    def __le__(self, other: Any) -> bool:
        return int(self) <= int(other)

    def __gt__(self, other: Any) -> bool:
        return int(self) > int(other)

    def __ge__(self, other: Any) -> bool:
        return int(self) >= int(other)

    def __repr__(self) -> str:
        return f"MPI.Exception({int(self)})"

    def __str__(self) -> str:
        return self.Get_error_string()

    def __reduce__(self) -> Any:
        return type(self), (int(self), self._text)

    def Get_error_code(self) -> int:
        """Return the number."""
        return int(self)

    def Get_error_class(self) -> int:
        """Return the class of the number."""
        return Get_error_class(int(self))

    def Get_error_string(self) -> str:
        """Return the text: what happened, where that is known."""
        return self._text or Get_error_string(int(self))

    error_code = property(Get_error_code, doc="The number.")
    error_class = property(Get_error_class, doc="The class of the number.")
    error_string = property(Get_error_string, doc="The text.")


def make_error(code: int, text: str) -> Exception:
    """Return an error with a text that says what happened."""
    name = _CLASSES.get(code)
    return Exception(code, f"MPI_ERR_{name}: {text}" if name else text)


def translate(error: BaseException) -> BaseException:
    """Return the error of MPI for one of allhands; all others are returned as they are."""
    match error:
        case allhands_errors.PeerFailed() | allhands_errors.MembershipChanged():
            code = ERR_PROC_FAILED
        case allhands_errors.GroupAborted():
            code = ERR_REVOKED
        case allhands_errors.AllhandsError():
            code = ERR_OTHER
        case _:
            return error
    made = make_error(code, str(error))
    made.__cause__ = error
    return made


def Get_error_class(errorcode: int) -> int:
    """Return the class of a code."""
    if errorcode in _CLASSES or errorcode in _added.classes or errorcode == ERR_LASTCODE:
        return errorcode
    return _added.codes.get(errorcode, ERR_UNKNOWN)


def Get_error_string(errorcode: int) -> str:
    """Return the text of a class or code."""
    if errorcode in _added.texts or errorcode in _added.classes or errorcode in _added.codes:
        return _added.texts.get(errorcode, "")
    name = _CLASSES.get(errorcode, "UNKNOWN")
    title = "MPI_SUCCESS" if name == "SUCCESS" else f"MPI_ERR_{name}"
    return f"{title}: {_TEXTS.get(name, name.replace('_', ' ').lower())}"


def Add_error_class() -> int:
    """Return a new class."""
    added = _added.take()
    _added.classes.add(added)
    return added


def Remove_error_class(errorclass: int) -> None:
    """Remove a class that was added, which must have no codes."""
    if (
        errorclass not in _added.classes
        or errorclass in _added.codes.values()
        or errorclass in _added.texts
    ):
        raise make_error(ERR_ARG, f"{errorclass} is no added class without codes and a text")
    _added.classes.discard(errorclass)
    _forget(errorclass)


def Add_error_code(errorclass: int) -> int:
    """Return a new code of a class."""
    code = _added.take()
    _added.codes[code] = errorclass
    return code


def Remove_error_code(errorcode: int) -> None:
    """Remove a code that was added."""
    if errorcode not in _added.codes or errorcode in _added.texts:
        raise make_error(ERR_ARG, f"{errorcode} is no added code without a text")
    del _added.codes[errorcode]
    _forget(errorcode)


def Add_error_string(errorcode: int, string: str) -> None:
    """Set the text of a class or code that was added."""
    if errorcode not in _added.classes and errorcode not in _added.codes:
        raise make_error(ERR_ARG, f"{errorcode} is no added class or code")
    _added.texts[errorcode] = string


def Remove_error_string(errorcode: int) -> None:
    """Remove the text of a class or code that was added."""
    if errorcode not in _added.classes and errorcode not in _added.codes:
        raise make_error(ERR_ARG, f"{errorcode} is no added class or code")
    _added.texts.pop(errorcode, None)


def last_used_code() -> int:
    """Return the greatest class or code so far."""
    return _added.last


def _forget(number: int) -> None:
    """Give numbers back that were taken last."""
    _added.texts.pop(number, None)
    while (
        _added.last > ERR_LASTCODE
        and _added.last not in _added.classes
        and _added.last not in _added.codes
    ):
        _added.last -= 1
