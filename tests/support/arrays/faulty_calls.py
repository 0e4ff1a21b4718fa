"""Calls with a difference on one rank: the failing ranks must find all buffers untouched."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import allhands as ah
from support.arrays import dtype_cases
from support.arrays.dtype_cases import CELLS, Cell

Array = npt.NDArray[Any]

WORKING = [cell for cell in CELLS if dtype_cases.is_defined(cell.operation, cell.op, cell.dtype)]
LENGTHS = (0, 1, 7, 300, 40_000)
"""Of each block: up to what is sent at once, and what is cut."""
WAYS = ("other call", "absent", "leaves", "abort", "read-only", "overlapping", "refused", "raises")
_SHORT = 0.08
"""Seconds for what waits in vain."""


@dataclass(frozen=True)
class Spoiled:
    """A call, and the different call of the odd rank."""

    cell: Cell
    length: int
    way: str
    odd: int
    other: Cell

    def make(self, rank: int, size: int, group: ah.Group) -> str:
        """Make the call on one rank; return the differences afterwards; "" for none."""
        call = dtype_cases.call_of(self.cell, rank, size, self.length)
        arguments: Any = call.arguments
        name = self.cell.operation
        is_odd = rank == self.odd
        if is_odd:
            match self.way:
                case "other call":
                    call = dtype_cases.call_of(self.other, rank, size, self.length)
                    name, arguments = self.other.operation, call.arguments
                case "absent" | "leaves":
                    return ""
                case "abort":
                    group.abort("it is spoiled")
                    return call.wrong(True)
                case "refused":
                    arguments = dtype_cases.call_of(
                        Cell(name, self.cell.op, "object"), rank, size
                    ).arguments
                case "read-only":
                    for one in call.written:
                        one.flags.writeable = False
                case "overlapping":
                    overlapping = {id(one): _repeat_first(one) for one in call.written}
                    arguments = _replaced(arguments, overlapping)
                case "raises":
                    arguments = tuple(
                        ah.ReduceOp.user(_raising, one.value.name) if _is_user(one) else one
                        for one in arguments
                    )
        is_short = self.way not in ("other call", "abort")
        try:
            seconds = _SHORT if is_short else 20
            result = getattr(ah, dtype_cases.named(name))(*arguments, group=group, timeout=seconds)
        except (RuntimeError, TypeError, ValueError, LookupError) as error:
            wrong = call.wrong(True)
            return f"{wrong} by {type(error).__name__}: {error}" if wrong else ""
        wrong = call.wrong(False, result)
        return wrong and f"it ended well, but: {wrong}"


def spoiled(choose: Callable[[str, Any], Any], size: int) -> Spoiled:
    """Choose a faulty call, by a function from a name and a list to a choice."""
    cell: Cell = choose("cell", WORKING)
    way: str = choose("way", WAYS)
    if way == "raises":
        cell = Cell(choose("reduction", dtype_cases.REDUCING), "user function", cell.dtype)
    others = [one for one in WORKING if _differ(one, cell)]
    other = choose("other", others) if way == "other call" else cell
    # Fewer than two elements cannot overlap.
    length = choose("length", LENGTHS[2:] if way == "overlapping" else LENGTHS)
    return Spoiled(cell, length, way, choose("odd", range(size)), other)


def from_random(seed: int, size: int) -> Spoiled:
    draw = random.Random(seed)
    return spoiled(lambda _, among: draw.choice(among), size)


def _differ(one: Cell, other: Cell) -> bool:
    return one.operation != other.operation or one.dtype != other.dtype or one.op != other.op


def _raising(a: Array, b: Array) -> Array:
    raise LookupError("it is spoiled")


def _is_user(given: object) -> bool:
    return isinstance(given, ah.ReduceOp) and given.name.startswith("USER")


def _repeat_first(array: Array) -> Array:
    """Return a writable view of an array, all elements of which are the first one's memory."""
    memory = array.reshape(-1).view(np.uint8).data
    return np.ndarray(array.shape, array.dtype, memory, 0, (0,) * array.ndim)


def _replaced(given: Any, instead: dict[int, Array]) -> Any:
    if isinstance(given, list | tuple):
        return type(given)(_replaced(one, instead) for one in given)
    return instead.get(id(given), given)
