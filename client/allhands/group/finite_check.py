"""Checks of arrays for NaN and infinities, as call hooks."""

import numpy as np

from allhands.collectives.arguments import AnyArray
from allhands.errors import AllhandsError
from allhands.group.call_info import Argument, CallInfo

_CHUNK = 1 << 20
"""Elements that are looked at together: what the check allocates is at most so many bytes."""


class NotFinite(AllhandsError, ArithmeticError):
    """An array of a call holds NaN or an infinity; see `check_finite`.

    Of an input: the call was not made on this rank. Of an output: it has ended, and the array is
    written.
    """

    code = "FAILED_PRECONDITION"

    def __init__(self, text: str, *, rank: int, op: str, argument: str, index: int) -> None:
        super().__init__(text)
        self.rank = rank
        """Of the group: where the array was found."""
        self.op = op
        self.argument = argument
        self.index = index
        """Of the first such element, in the flat array."""


def check_inputs(call: CallInfo) -> None:
    """Raise NotFinite if an array that the call reads on this rank has NaN or an infinity."""
    _check(call, call.inputs, "before")


def check_outputs(call: CallInfo, error: BaseException | None, seconds: float) -> None:
    """Raise NotFinite if an array that a successful call has written has NaN or an infinity."""
    if error is None:
        _check(call, call.outputs, "after")


def _check(call: CallInfo, arguments: tuple[Argument, ...], when: str) -> None:
    for argument in arguments:
        if (at := find_not_finite(argument.array)) is None:
            continue
        value = argument.array.reshape(-1)[at]
        place: object = at + argument.offset
        if argument.array.ndim > 1:
            place = tuple(int(one) for one in np.unravel_index(at, argument.array.shape))
        raise NotFinite(
            f"rank {call.rank}, {when} {call}: {argument.name} has {value} at index {place}",
            rank=call.rank,
            op=call.operation,
            argument=argument.name,
            index=at + argument.offset,
        )


def find_not_finite(array: AnyArray) -> int | None:
    """Return the flat index of the first NaN or infinity; None: there is none.

    Integers and other dtypes without either are not looked at.
    """
    if array.dtype.kind in "biuSUMmO":
        return None
    flat = array.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        try:
            finite = np.isfinite(flat[start : start + _CHUNK])
        except TypeError:  # records, or raw bytes
            return None
        if not finite.all():
            return start + int(finite.argmin())
    return None
