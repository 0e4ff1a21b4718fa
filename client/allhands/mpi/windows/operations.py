"""Operations on the memory of a window: what they do there. Pure."""

import enum

import numpy as np

from allhands.mpi import errors
from allhands.mpi.constants import ERR_OP, ERR_PROC_FAILED, ERR_RMA_RANGE, ERR_TYPE
from allhands.mpi.datatypes.datatype import find_constant
from allhands.mpi.operations.predefined import CONSTANTS as OPERATIONS
from allhands.mpi.progress.frames import Bytes
from allhands.mpi.windows import places
from allhands.mpi.windows.memories import Memory
from allhands.mpi.windows.places import Place


class Kind(enum.IntEnum):
    """What a frame of a window is."""

    PUT = 1
    GET = 2
    ACCUMULATE = 3
    FETCH = 4
    """Accumulate, and answer with what was there."""
    SWAP = 5
    """Compare and swap: the data is what to compare with, and what to store."""
    LOCK = 6
    UNLOCK = 7
    POST = 8
    COMPLETE = 9
    ANSWER = 10
    FAILURE = 11
    GRANT = 12
    """A lock that was waited for is held now: from who has given it back."""


ATOMIC = frozenset({Kind.ACCUMULATE, Kind.FETCH, Kind.SWAP})
"""Operations that nothing comes between, at the same place."""


def carry_out(kind: int, place: Place, memory: Memory, start: int, data: Bytes) -> Bytes | None:
    """Do an operation to memory; return the data that it answers with, perhaps a view.

    Raises:
        ValueError: the place lies not within the memory, or the data has another size.
        ProcessLookupError: the process that has the memory has ended.
        Exception: the operation is none of those on windows.
    """
    match kind:
        case Kind.PUT:
            memory.write(place, start, data)
        case Kind.GET:
            return memory.read(place, start)
        case Kind.ACCUMULATE | Kind.FETCH:
            before = memory.read(place, start)
            answer = before.copy() if kind == Kind.FETCH else None
            _accumulate(place, memory, start, before, data)
            return answer
        case Kind.SWAP:
            before = memory.read(place, start).copy()
            if data.size != 2 * before.size:
                raise ValueError("a swap brings what to compare with and what to store")
            if (before == data[: before.size]).all():
                memory.write(place, start, data[before.size :])
            return before
        case _:
            raise ValueError(f"{kind} is no operation on windows")
    return None


def explain(error: Exception) -> tuple[int, str]:
    """Return the class and the text of the failure of `carry_out`.

    Raises:
        Exception: that error, which is none of its own.
    """
    if isinstance(error, errors.Exception):
        return error.Get_error_class(), str(error)
    if isinstance(error, ValueError):
        return ERR_RMA_RANGE, str(error)
    if isinstance(error, ProcessLookupError):
        return ERR_PROC_FAILED, str(error)
    raise error


def _accumulate(place: Place, memory: Memory, start: int, before: Bytes, data: Bytes) -> None:
    operation = OPERATIONS.get(place.op)
    if operation is None:
        raise errors.make_error(ERR_OP, f"{place.op!r} is no predefined operation")
    if place.op == "NO_OP":
        return
    if data.size != before.size:
        raise ValueError(f"{data.size} bytes are brought for a place of {before.size}")
    if place.op == "REPLACE":
        memory.write(place, start, data)
        return
    if not places.is_known(place.element):
        raise errors.make_error(ERR_TYPE, "the elements of an accumulation are of one kind")
    datatype = find_constant(place.element)
    result = np.array(before)
    count = result.size // datatype.size if datatype.size else 0
    operation.reduce_into(data, result, datatype, count)
    memory.write(place, start, result)
