"""ReduceOp: the operation that combines two contributions."""

import enum
import math
from collections.abc import Callable
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from allhands.suggestions import OP_HABITS, make_attribute_error
from allhands_proto.quick_dataclass import dataclass

Function = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
"""Combines two 1-D arrays of one dtype and length, element by element, into a third."""


@dataclass(frozen=True, slots=True)
class PremulSum:
    """SUM of contributions, each multiplied by a factor before."""

    factor: int | float


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A user's function as the combination of two contributions."""

    function: Function
    name: str


class _ReduceOpType(enum.EnumMeta):
    """Type of `ReduceOp`: names the nearest operation where there is none of a name."""

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise make_attribute_error("ReduceOp", name, cls.__members__, OP_HABITS)


class ReduceOp(enum.Enum, metaclass=_ReduceOpType):
    """How contributions are combined, element by element.

    All but what `user` makes are associative and commutative, up to rounding. Ranks must name the
    same operation with the same factor or function's name, else all raise `CollectiveMismatch`.
    An operation is immutable; copies are equal, and pickles of those with a name are the same.
    """

    _value_: str | PremulSum | UserFunction

    SUM = "sum"
    AVG = "avg"
    """SUM, divided by the size of the group at the end. Integers are divided as in C, and by NCCL:
    towards zero. Not of booleans."""
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"
    LAND = "land"
    """Whether all are true, that is, not 0; of integers the result is 0 or 1 of their dtype."""
    LOR = "lor"
    """Whether any is true."""
    LXOR = "lxor"
    """Whether an odd number of them is true."""
    MINLOC = "minloc"
    """The least value and where it was: of pairs, such as those of
    `np.dtype([("value", np.float32), ("index", np.int64)])`. Of equal values the one with the least
    index counts, and of floats NaN counts as less than all others."""
    MAXLOC = "maxloc"
    """The greatest value and where it was; of NaN and of equal values as MINLOC."""

    @classmethod
    def premul_sum(cls, factor: object) -> "ReduceOp":
        """Return the SUM of contributions, each multiplied by `factor` before.

        Args:
            factor: a finite real number, or an array of a single one, the same on every rank.
                Integer arrays take whole numbers only.

        Each product is rounded to the array's dtype, except for floats narrower than float32: their
        products and sums are float32, and rounded once.

        Raises:
            TypeError: `factor` is no real number.
            ValueError: an infinity or NaN, or an array of more or fewer than one element.
        """
        return cls(PremulSum(_check_factor(factor)))

    @classmethod
    def user(cls, function: Function, name: str | None = None) -> "ReduceOp":
        """Return the operation that a function defines: `function(a, b)` for any two arrays.

        It gets 1-D arrays of the caller's dtype, which may be a structured one, and of one length,
        which has nothing to do with that of the caller's; it returns their combination, element by
        element, as an array of that dtype and length. It may write into its arguments. Each element
        is combined on one rank, from the left in the order of ranks: `f(f(f(x0, x1), x2), x3)`; so
        the function need be neither commutative nor associative, and every rank has the same bits.

        It runs on the thread that carries calls out: it should take moments, and make no calls of
        this package. What it raises its rank's call raises; the other ranks are told of it.

        Args:
            function: as above; pickled by reference if at all.
            name: by which ranks know that they mean the same one; by default the function's own.

        Raises:
            TypeError: it cannot be called.
        """
        if not callable(function):
            raise TypeError(f"a user's operation must be callable, not {function!r}")
        found = getattr(function, "__qualname__", "") or type(function).__qualname__
        return cls(UserFunction(function, found if name is None else name))

    @classmethod
    def _missing_(cls, value: object) -> "ReduceOp | None":
        match value:
            case PremulSum(factor):
                name = f"PREMUL_SUM({_format_factor(factor)})"
            case UserFunction(name=given):
                name = f"USER({given})"
            case _:
                return None
        made = object.__new__(cls)
        made._name_ = name
        made._value_ = value
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReduceOp) and self._value_ == other._value_

    def __hash__(self) -> int:
        return hash(self._name_)


OPS: Final = tuple(op for op in ReduceOp if op not in (ReduceOp.MINLOC, ReduceOp.MAXLOC))
"""Those that the native core knows, by their place here."""


def _check_factor(factor: object) -> int | float:
    if isinstance(factor, np.ndarray):
        if factor.size != 1:
            raise ValueError(f"factor must be one number, not an array of {factor.size}")
        factor = factor.reshape(-1)[0]
    if isinstance(factor, np.generic):
        factor = factor.item()
    if isinstance(factor, bool) or not isinstance(factor, int | float):
        raise TypeError(f"factor must be a real number, not {factor!r}")
    if not math.isfinite(factor):
        raise ValueError(f"factor must be finite, not {factor}")
    return factor


def _format_factor(factor: int | float) -> str:
    """Write equal numbers alike."""
    return str(int(factor)) if factor == int(factor) else repr(factor)
