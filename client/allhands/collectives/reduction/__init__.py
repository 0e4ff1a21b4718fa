"""How contributions are combined: which operation, on which dtypes, with which operands.

Values keep their dtype throughout: integers wrap around as NumPy's do, floats overflow to
infinity (float8_e4m3fn, which has none, to NaN), and neither warns. AVG of integers divides their
sum as integers, towards zero. Of booleans, SUM is OR and PRODUCT is AND. MIN and MAX of floats are
NaN where any contribution is. Floats narrower than float32 are added up and multiplied in float32
and rounded once: on every host, and once more where a group has several.
"""

from allhands.collectives.reduction.checks import check, check_mean
from allhands.collectives.reduction.dtypes import TYPES, is_narrow, is_pair, name_of
from allhands.collectives.reduction.folds import combine, finish, fold, is_whole, scaled
from allhands.collectives.reduction.op import OPS, Premul, ReduceOp, User

__all__ = [
    "OPS",
    "TYPES",
    "Premul",
    "ReduceOp",
    "User",
    "check",
    "check_mean",
    "combine",
    "finish",
    "fold",
    "is_narrow",
    "is_pair",
    "is_whole",
    "name_of",
    "scaled",
]
