"""How contributions are combined: which operation, on which dtypes, with which operands.

Values keep their dtype throughout: integers wrap around as NumPy's do, floats overflow to
infinity, and neither warns. Of booleans, SUM is OR and PRODUCT is AND. MIN and MAX of floats are
NaN where any contribution is.
"""

import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]


class ReduceOp(enum.Enum):
    """An operation that is associative and commutative, up to rounding."""

    SUM = "sum"
    AVG = "avg"
    """SUM, divided by the size of the group at the end."""
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"


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
    }
)

_DTYPES: Final = frozenset(
    np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
)
_INEXACT: Final = "fc"
"""The kinds of dtype that round, and of which NumPy warns about what it computes."""


def is_bfloat16(dtype: np.dtype[np.generic]) -> bool:
    """Say whether it is the bfloat16 of ml_dtypes, which NumPy counts among no kind."""
    return dtype.kind == "V" and dtype.name == "bfloat16" and dtype.itemsize == 2


def _rounds(dtype: np.dtype[np.generic]) -> bool:
    return dtype.kind in _INEXACT or is_bfloat16(dtype)


def check(op: ReduceOp, dtype: npt.DTypeLike) -> None:
    """Refuse what cannot be reduced; the text says what to do.

    Raises:
        TypeError: `op` is no ReduceOp, or not defined for `dtype`; or nothing is defined for it.
    """
    if not isinstance(op, ReduceOp):
        raise TypeError(f"op must be a ReduceOp such as ReduceOp.SUM, not {op!r}")
    dtype = np.dtype(dtype)
    _check_dtype(dtype)
    match op:
        case ReduceOp.AVG if not _rounds(dtype):
            raise TypeError(f"AVG of {dtype} is not defined; use SUM and divide")
        case ReduceOp.MIN | ReduceOp.MAX if dtype.kind == "c":
            raise TypeError(
                f"{op.name} of {dtype} is not defined: complex numbers have no order; "
                "reduce the real and imaginary parts, or magnitudes"
            )
        case ReduceOp.BAND | ReduceOp.BOR | ReduceOp.BXOR if _rounds(dtype):
            raise TypeError(
                f"Cannot use ReduceOp.{op.name} with non-integral dtype {dtype}; "
                "use a view of it as unsigned integers if its bits are meant"
            )


def combine(op: ReduceOp, left: Array, right: Array, out: Array) -> None:
    """Write `left` op `right` to `out`, which may be one of the two.

    All are of one dtype, which has passed `check`, and of one length.
    """
    ufunc = _UFUNCS[op]
    if not _rounds(out.dtype):
        ufunc(left, right, out=out)  # arrays of integers never warn
        return
    # 1 us a call. A shared errstate as decorator takes half, but before NumPy 2 threads that
    # share one restore each other's settings.
    with np.errstate(all="ignore"):
        ufunc(left, right, out=out)


def fold(op: ReduceOp, operands: Sequence[Array], out: Array, divisor: int) -> None:
    """Write the combination of all operands, from the left, to `out`, which may be one of them.

    Half types are added up in float32 and rounded once; AVG is divided by `divisor`, before that.
    All are of one dtype, which has passed `check`, and of one length.
    """
    is_half = out.dtype == np.float16 or is_bfloat16(out.dtype)
    wide = operands[0].astype(np.float32) if is_half else operands[0].copy()
    for operand in operands[1:]:
        combine(op, wide, operand.astype(wide.dtype, copy=False), wide)
    finish(op, wide, divisor)
    with np.errstate(all="ignore"):
        np.copyto(out, wide, casting="unsafe")  # from float32 to a half type, or none at all


def finish(op: ReduceOp, array: Array, world_size: int) -> None:
    """Turn what `combine` made of everybody's contribution into the result, in place.

    A sum that overflowed on the way to an AVG stays infinite.
    """
    if op is ReduceOp.AVG:
        with np.errstate(all="ignore"):
            np.true_divide(array, world_size, out=array)


def _check_dtype(dtype: np.dtype[np.generic]) -> None:
    if not dtype.isnative:
        raise TypeError(
            f"cannot reduce {dtype.str}, whose byte order is not this machine's; "
            "convert it first: x.astype(x.dtype.newbyteorder('='))"
        )
    if dtype in _DTYPES or is_bfloat16(dtype):
        return
    if dtype.hasobject:
        raise TypeError(
            f"cannot reduce {dtype} arrays; convert to a numeric dtype first, such as "
            "x.astype(np.float64), or use the object collectives"
        )
    if dtype.kind in _INEXACT:
        portable = "float64" if dtype.kind == "f" else "complex128"
        raise TypeError(
            f"cannot reduce {dtype}, whose bits differ between machines; "
            f"convert first: x.astype(np.{portable})"
        )
    raise TypeError(
        f"cannot reduce {dtype}; reductions take bool, int8 to int64, uint8 to uint64, "
        "float16 to float64, bfloat16, complex64 and complex128"
    )
