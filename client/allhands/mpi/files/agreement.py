"""Failures of collective calls: if a rank fails, all do, and none waits for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from allhands.mpi import errors
from allhands.mpi.communicators.intracomm import Intracomm
from allhands.mpi.constants import ERR_OTHER

_NOT_IMPLEMENTED = -1
"""Stands for `NotImplementedError` among codes."""


@contextmanager
def fail_together(comm: Intracomm) -> Iterator[None]:
    """Raise the error of one rank's block on all ranks; blocks end when all have ended.

    A rank that failed raises its own error, the others that of the lowest one, by its name.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    said = comm._share(_describe(failure))
    if failure is not None:
        raise failure
    for rank, told in enumerate(said):
        if told is not None:
            raise _rebuild(told[0], f"rank {rank}: {told[1]}")


def _describe(failure: Exception | None) -> tuple[int, str] | None:
    match failure:
        case None:
            return None
        case errors.Exception():
            return int(failure), str(failure)
        case NotImplementedError():
            return _NOT_IMPLEMENTED, str(failure)
        case _:
            return ERR_OTHER, f"{type(failure).__name__}: {failure}"


def _rebuild(code: int, text: str) -> Any:
    if code == _NOT_IMPLEMENTED:
        return NotImplementedError(text)
    return errors.Exception(code, text)
