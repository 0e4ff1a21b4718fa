"""Which operation is defined for which dtype."""

from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from allhands.collectives.reduction.dtypes import Dtype, Kind, Traits, get_traits, is_pair
from allhands.collectives.reduction.op import PremulSum, ReduceOp, UserFunction

_INTEGRAL_OPS: Final = frozenset(
    {ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR, ReduceOp.LAND, ReduceOp.LOR, ReduceOp.LXOR}
)


def check(op: ReduceOp, dtype: npt.DTypeLike) -> None:
    """Check that a reduction is defined for a dtype; the error text says what to do.

    Raises:
        TypeError: `op` is no ReduceOp, or not defined for `dtype`; or nothing is defined for it.
    """
    if not isinstance(op, ReduceOp):
        raise TypeError(f"op must be a ReduceOp such as ReduceOp.SUM, or its name, not {op!r}")
    found: Dtype = np.dtype(dtype)
    value = op._value_  # `value` itself takes a fifth of all this
    if isinstance(value, UserFunction):
        if found.hasobject:
            _refuse(found)
        return
    if op is ReduceOp.MINLOC or op is ReduceOp.MAXLOC:
        if not is_pair(found):
            raise TypeError(
                f"{op.name} of {found} is not defined: it takes pairs of a value and an index, "
                'such as np.dtype([("value", np.float32), ("index", np.int64)])'
            )
        return
    if (known := get_traits(found)) is None:
        _refuse(found)
    _check_arithmetic(op, known.name, known.kind)
    if isinstance(value, PremulSum):
        _check_factor(value.factor, op, found, known)


def check_mean(dtype: npt.DTypeLike) -> None:
    """Refuse dtypes that lose the fraction of a mean: those of parameters and gradients must not.

    Raises:
        TypeError: integers, of which AVG drops it; or what `check` refuses.
    """
    found: Dtype = np.dtype(dtype)
    check(ReduceOp.AVG, found)
    if (known := get_traits(found)) is not None and known.kind == "integer":
        raise TypeError(
            f"the mean of {known.name} arrays would lose its fraction: parameters and gradients "
            "must be floats or complex numbers; convert them first, such as x.astype(np.float32)"
        )


def _check_arithmetic(op: ReduceOp, name: str, kind: Kind) -> None:
    if kind in ("float", "complex") and op in _INTEGRAL_OPS:
        instead = (
            "use a view of it as unsigned integers if its bits are meant"
            if op.name.startswith("B")
            else "use x != 0 if it is meant whether it is zero"
        )
        raise TypeError(f"Cannot use ReduceOp.{op.name} with non-integral dtype {name}; {instead}")
    if op is ReduceOp.AVG and kind == "bool":
        raise TypeError(
            f"Cannot use ReduceOp.AVG with Boolean inputs: AVG of {name} is not defined; "
            "convert it to a numeric dtype first, such as float32"
        )
    if kind == "complex" and (op is ReduceOp.MIN or op is ReduceOp.MAX):
        raise TypeError(
            f"{op.name} of {name} is not defined: complex numbers have no order; "
            "reduce the real and imaginary parts, or magnitudes"
        )


def _check_factor(factor: int | float, op: ReduceOp, dtype: np.dtype[Any], known: Traits) -> None:
    if known.kind == "bool":
        raise TypeError(f"{op.name} of bool is not defined; use an integer dtype")
    if known.kind == "integer":
        limits = np.iinfo(dtype)
        if factor != int(factor):
            raise TypeError(f"{op.name} of {dtype} is not defined: its factor is no whole number")
        if not limits.min <= factor <= limits.max:
            raise TypeError(f"{op.name} of {dtype} is not defined: it cannot hold the factor")
        return
    wide = np.finfo(np.float32 if known.is_narrow else dtype)
    if abs(factor) > float(wide.max):
        raise TypeError(f"{op.name} of {dtype} is not defined: its factor would be infinite")


def _refuse(dtype: Dtype) -> NoReturn:
    if not dtype.isnative and dtype.names is None:
        raise TypeError(
            f"cannot reduce {dtype.str}, whose byte order is not this machine's; "
            "convert it first: x.astype(x.dtype.newbyteorder('='))"
        )
    if dtype.hasobject:
        raise TypeError(
            f"cannot reduce {dtype} arrays; convert to a numeric dtype first, such as "
            "x.astype(np.float64), or use the object collectives"
        )
    if dtype.isbuiltin == 1 and dtype.kind in "fc":
        portable = "float64" if dtype.kind == "f" else "complex128"
        raise TypeError(
            f"cannot reduce {dtype}, whose bits differ between machines; "
            f"convert first: x.astype(np.{portable})"
        )
    raise TypeError(
        f"cannot reduce {dtype}; reductions take bool, int8 to int64, uint8 to uint64, "
        "float16 to float64, bfloat16, float8_e4m3fn, float8_e5m2, complex64 and complex128, "
        "MINLOC and MAXLOC pairs; those with a function of yours take every dtype"
    )
