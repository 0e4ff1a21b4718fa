"""Staging of outputs: contiguous copies in the place of arrays that calls cannot write directly.

A call works on the copies. They are loaded when its turn has come, as the arrays may be written by
calls before, and stored after it has succeeded, before anybody learns so: a call that fails leaves
staged outputs as they were.
"""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Final, TypeVar

import numpy as np

from allhands.collectives import arguments
from allhands.collectives.arguments import AnyArray
from allhands.collectives.buffer import Array
from allhands.data.blocks import copy_into
from allhands.errors import AllhandsError, InvalidArgument
from allhands_proto.quick_dataclass import dataclass

T = TypeVar("T")

INLINE_COPY_BYTES: Final = 1 << 20
"""Most bytes of copies that are loaded and stored on an event loop, which has more to do."""
_OVERLAP_WORK: Final = 10_000
"""Steps of the search for shared elements of two arrays, which may be hard."""


@dataclass(frozen=True, slots=True)
class StagedArray:
    """A contiguous copy, and the array in whose place it is."""

    copy: AnyArray
    array: AnyArray
    is_output: bool = True
    """Whether the result is stored in the array; else it is only read."""


@dataclass(frozen=True, slots=True)
class Staging:
    """The copies of one call."""

    staged: Sequence[StagedArray]
    covers_outputs: bool
    """Whether all outputs are staged: then a failed call has written none."""

    @property
    def nbytes(self) -> int:
        return sum(one.copy.nbytes for one in self.staged)

    def load(self) -> None:
        """Fill the copies from the arrays."""
        for one in self.staged:
            copy_into(one.copy, one.array)

    def store(self) -> None:
        """Write the copies of outputs back to the arrays."""
        for one in self.staged:
            if one.is_output:
                copy_into(one.array, one.copy)

    def carry_out(self, run: Callable[[], T]) -> T:
        """Load the copies, run a call, and store them if it returns something true."""
        self.load()
        try:
            ended = run()
        except AllhandsError as error:
            self.note_failure(error)
            raise
        if ended:
            self.store()
        return ended

    def note_failure(self, error: BaseException) -> None:
        """Record in the error of a failed call that its outputs are intact, if all are staged."""
        if self.covers_outputs and isinstance(error, AllhandsError):
            error.restored()


class Outputs:
    """The arrays that one call writes, and the copies of those that are staged."""

    __slots__ = ("_has_direct", "_staged", "_stages")

    def __init__(self, stages: bool = True) -> None:
        """Collect the outputs of a call; without `stages` they must be C-contiguous."""
        self._stages = stages
        self._staged: list[StagedArray] = []
        self._has_direct = False

    @property
    def staging(self) -> Staging | None:
        """The copies of the outputs so far; None: all are written directly."""
        if not self._staged:
            return None
        return Staging(tuple(self._staged), covers_outputs=not self._has_direct)

    def check(self, array: object, name: str) -> Array:
        """Return a 1-D array that the call writes in the place of an output of any layout.

        Raises:
            TypeError: as `arguments.check_array`.
            ValueError: the array is read-only, or elements of it share memory.
        """
        found = arguments.check_array(array, name)
        if not found.flags.c_contiguous and not self._stages:
            return arguments.check_target(array, name)  # which says why not
        arguments.check_writeable(found, name)
        if found.flags.c_contiguous:
            self._has_direct = True
            return found.reshape(-1)
        if _may_overlap_itself(found):
            raise InvalidArgument(
                f"elements of {name} share memory (shape {found.shape}, strides {found.strides}): "
                "one would overwrite the other; use a copy"
            )
        return self._stage(found, is_output=True)

    def check_root(self, array: object, name: str, *, is_root: bool) -> Array:
        """Return a 1-D array in the place of one that the root reads and other ranks write."""
        if is_root and self._stages:
            found = arguments.check_array(array, name)
            if not (found.flags.c_contiguous and found.flags.writeable):
                return self._stage(found, is_output=False)
        return self.check(array, name)

    def check_list(
        self, arrays: object, name: str, size: int, *, in_place: bool = False
    ) -> list[Array]:
        """Return 1-D arrays in the place of a list of outputs; see `arguments.check_targets`.

        Raises:
            TypeError, ValueError: as `check`; a wrong number of them.
            InvalidArgument: two share memory, and would hold different elements.
        """
        given = arguments.check_list(arrays, name, size)
        if not self._stages or all(_is_contiguous(one) for one in given):
            return arguments.check_targets(given, name, size, in_place=in_place)
        found = [arguments.check_array(one, f"{name}[{at}]") for at, one in enumerate(given)]
        flats = [self.check(one, f"{name}[{at}]") for at, one in enumerate(found)]
        for one, other in combinations(found, 2):
            if _may_share_elements(one, other) and not (in_place and _are_same(one, other)):
                raise InvalidArgument(
                    f"two arrays of {name} share memory: one would overwrite the other"
                )
        return flats

    def check_root_list(
        self, arrays: object, name: str, size: int, *, is_root: bool
    ) -> list[Array]:
        """Return 1-D arrays in the place of a list that the root reads and other ranks write."""
        if not is_root or not self._stages:
            return self.check_list(arrays, name, size, in_place=True)
        given = arguments.check_list(arrays, name, size)
        return [self.check_root(one, f"{name}[{at}]", is_root=True) for at, one in enumerate(given)]

    def _stage(self, array: AnyArray, *, is_output: bool) -> Array:
        copy = np.empty(array.shape, array.dtype)
        self._staged.append(StagedArray(copy, array, is_output))
        return copy.reshape(-1)


def _is_contiguous(array: object) -> bool:
    return isinstance(array, np.ndarray) and array.flags.c_contiguous


def _may_overlap_itself(array: AnyArray) -> bool:
    """Return whether two elements of an array may share memory; never of slices and transposes."""
    if array.size == 0:
        return False
    reach = array.itemsize
    steps = [
        (abs(stride), length)
        for stride, length in zip(array.strides, array.shape, strict=True)
        if length > 1
    ]
    for stride, length in sorted(steps):
        if stride < reach:
            return True
        reach += stride * (length - 1)
    return False


def _may_share_elements(one: AnyArray, other: AnyArray) -> bool:
    try:
        return np.shares_memory(one, other, max_work=_OVERLAP_WORK)  # type: ignore[arg-type]  # any number
    except np.exceptions.TooHardError:
        return True


def _are_same(one: AnyArray, other: AnyArray) -> bool:
    """Return whether two arrays are the same elements in the same order."""
    return (
        one.__array_interface__["data"] == other.__array_interface__["data"]
        and one.strides == other.strides
        and one.shape == other.shape
        and one.dtype == other.dtype
    )
