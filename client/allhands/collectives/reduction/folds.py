"""Folds of operands: pairwise on arrival, or of all ranks at once."""

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType, ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from allhands.collectives.reduction.dtypes import (
    TYPES,
    Dtype,
    get_dtype_name,
    get_traits,
    is_narrow,
)
from allhands.collectives.reduction.op import OPS, PremulSum, ReduceOp, UserFunction
from allhands.runtime import native_core

Array = npt.NDArray[np.generic]

_UFUNCS: Final[Mapping[ReduceOp, np.ufunc]] = MappingProxyType(
    {
        ReduceOp.SUM: np.add,
        ReduceOp.AVG: np.add,
        ReduceOp.PRODUCT: np.multiply,
        ReduceOp.MIN: np.minimum,
        ReduceOp.MAX: np.maximum,
        ReduceOp.BAND: np.bitwise_and,
        ReduceOp.BOR: np.bitwise_or,
        ReduceOp.BXOR: np.bitwise_xor,
        ReduceOp.LAND: np.logical_and,
        ReduceOp.LOR: np.logical_or,
        ReduceOp.LXOR: np.logical_xor,
    }
)
_LOGICAL: Final = (ReduceOp.LAND, ReduceOp.LOR, ReduceOp.LXOR)
_ROUNDING: Final = (ReduceOp.SUM, ReduceOp.PRODUCT)
_MAX_OPERANDS: Final = 64
"""That the native core takes at once."""


def must_fold_at_once(op: ReduceOp, dtype: Dtype, size: int) -> bool:
    """Say whether `size` contributions must be folded at once to be rounded once.

    What two make in float32 and then round is what they make in their own dtype; and the least of
    them need not be rounded at all.
    """
    return is_narrow(dtype) and (op is ReduceOp.AVG or (size > 2 and op in _ROUNDING))


def combine(op: ReduceOp, left: Array, right: Array, out: Array) -> None:
    """Write `left` op `right` to `out`, which may be one of the two.

    All are of one dtype, which has passed `check`, and of one length; the operation is of `OPS`.
    """
    known = get_traits(out.dtype)
    if known is None or known.kind in ("bool", "integer"):
        _UFUNCS[op](left, right, out=out)  # arrays of integers never warn
        return
    # The core takes part in calls over links, and what two ranks compute must be the same bits; of
    # narrow floats NumPy takes 20 times as long.
    if (core := _find_core()) is not None:
        pairwise = ReduceOp.SUM if op is ReduceOp.AVG else op
        operands = tuple(one if one.flags.aligned else one.copy() for one in (left, right))
        core.fold(OPS.index(pairwise), TYPES.index(known.name), out, operands, 1)
        return
    # 1 us a call. A shared errstate as decorator takes half, but before NumPy 2 threads that
    # share one restore each other's settings.
    with np.errstate(all="ignore"):
        _UFUNCS[op](left, right, out=out)


def fold(op: ReduceOp, operands: Sequence[Array], out: Array, divisor: int) -> None:
    """Write the left fold of all operands to `out`, which may be an operand.

    Floats narrower than float32 are combined in that and rounded once; AVG is divided by `divisor`,
    before that, and of integers towards zero. All are 1-D, of one dtype, which has passed `check`,
    and of one length.

    Raises:
        TypeError: a user's function returned something else than it should.
    """
    match op.value:
        case UserFunction() as user:
            np.copyto(out, _fold_by_function(user, operands))
        case PremulSum(factor):
            _fold_scaled(operands, factor, out)
        case _ if op is ReduceOp.MINLOC or op is ReduceOp.MAXLOC:
            np.copyto(out, _fold_extreme(op, operands))
        case _:
            _fold_plain(op, operands, out, divisor)


def finish(op: ReduceOp, array: Array, world_size: int) -> None:
    """Turn the pairwise combination of all contributions into the result, in place.

    A sum that overflowed on the way to an AVG stays infinite. In a group of one `combine` has not
    been called.
    """
    if op is ReduceOp.AVG:
        known = get_traits(array.dtype)
        if known is not None and known.kind == "integer":
            _divide_integers(array, known.name, world_size)
            return
        with np.errstate(all="ignore"):
            if is_narrow(array.dtype):
                wide = np.true_divide(array.astype(np.float32), np.float32(world_size))
                np.copyto(array, wide, casting="unsafe")
            else:
                np.true_divide(array, world_size, out=array)
    elif op in _LOGICAL and world_size == 1:
        np.not_equal(array, 0, out=array)


def _divide_integers(array: Array, name: str, divisor: int) -> None:
    """Divide in place, towards zero."""
    if (core := _find_core()) is not None:  # NumPy takes several times as long, and more memory
        core.fold(OPS.index(ReduceOp.AVG), TYPES.index(name), array, (array,), divisor)
        return
    # A divisor need not fit the dtype: groups may have more than 127 ranks.
    wide: Any = array.astype(np.int64 if array.itemsize < 8 else array.dtype)
    quotient, rest = np.divmod(wide, wide.dtype.type(divisor))  # towards minus infinity
    quotient += (wide < 0) & (rest != 0)
    np.copyto(array, quotient, casting="unsafe")


def scale(factor: int | float, array: Array) -> Array:
    """Return the products with a factor, in the array's dtype or, if that is narrow, float32."""
    wide: Any = array.astype(np.float32) if is_narrow(array.dtype) else array
    known = get_traits(wide.dtype)
    number = int(factor) if known is not None and known.kind == "integer" else float(factor)
    with np.errstate(all="ignore"):
        return np.asarray(np.multiply(wide, wide.dtype.type(number)))


def _fold_plain(op: ReduceOp, operands: Sequence[Array], out: Array, divisor: int) -> None:
    name = get_dtype_name(out.dtype)
    core = _find_core()
    if core is not None and name is not None and len(operands) <= _MAX_OPERANDS:
        core.fold(OPS.index(op), TYPES.index(name), out, tuple(operands), divisor)
        return
    wide = operands[0].astype(np.float32 if is_narrow(out.dtype) else out.dtype)
    for operand in operands[1:]:
        combine(op, wide, operand.astype(wide.dtype, copy=False), wide)
    finish(op, wide, divisor if op is ReduceOp.AVG else len(operands))
    _round(wide, out)


def _fold_scaled(operands: Sequence[Array], factor: int | float, out: Array) -> None:
    wide = scale(factor, operands[0])
    for operand in operands[1:]:
        combine(ReduceOp.SUM, wide, scale(factor, operand), wide)
    _round(wide, out)


def _round(wide: Array, out: Array) -> None:
    with np.errstate(all="ignore"):
        np.copyto(out, wide, casting="unsafe")  # from float32 to a narrower one, or none at all


def _fold_by_function(user: UserFunction, operands: Sequence[Array]) -> Array:
    made = operands[0].copy()
    for operand in operands[1:]:
        wanted = made.dtype, made.shape
        made = user.function(made, operand.copy())
        if not isinstance(made, np.ndarray) or (made.dtype, made.shape) != wanted:
            raise TypeError(
                f"the function of USER({user.name}) must return an array of {wanted[1][0]} "
                f"elements of {wanted[0]}, as it was given, not {_describe(made)}"
            )
    return made


def _describe(made: object) -> str:
    if isinstance(made, np.ndarray):
        return f"one of shape {made.shape} of {made.dtype}"
    return f"a {type(made).__name__}"


def _fold_extreme(op: ReduceOp, operands: Sequence[Array]) -> Array:
    """Return the pairs chosen by `ReduceOp.MINLOC` or `MAXLOC`."""
    made: Any = operands[0].copy()
    value, index = made.dtype.names
    for operand in operands[1:]:
        other: Any = operand
        mine, theirs = made[value], other[value]
        is_before = np.less(theirs, mine) if op is ReduceOp.MINLOC else np.greater(theirs, mine)
        my_nan, their_nan = mine != mine, theirs != theirs
        is_equal = (theirs == mine) | (my_nan & their_nan)
        takes = is_before | (their_nan & ~my_nan) | (is_equal & (other[index] < made[index]))
        made[takes] = other[takes]
    return np.asarray(made)


@cache
def _find_core() -> ModuleType | None:
    return native_core.find()[0]
