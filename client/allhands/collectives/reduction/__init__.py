"""How contributions are combined: which operation, on which dtypes, with which operands.

Values keep their dtype throughout: integers wrap around as NumPy's do, floats overflow to
infinity (float8_e4m3fn, which has none, to NaN), and neither warns. AVG of integers divides their
sum as integers, towards zero. Of booleans, SUM is OR and PRODUCT is AND. MIN and MAX of floats are
NaN where any contribution is. Floats narrower than float32 are added up and multiplied in float32
and rounded once: on every host, and once more where a group has several.
"""

from allhands.collectives.reduction.checks import check, check_mean
from allhands.collectives.reduction.dtypes import TYPES, get_dtype_name, is_narrow, is_pair
from allhands.collectives.reduction.folds import combine, finish, fold, must_fold_at_once, scale
from allhands.collectives.reduction.names import parse_op
from allhands.collectives.reduction.op import OPS, PremulSum, ReduceOp, UserFunction

__all__ = [
    "OPS",
    "TYPES",
    "PremulSum",
    "ReduceOp",
    "UserFunction",
    "check",
    "check_mean",
    "combine",
    "finish",
    "fold",
    "get_dtype_name",
    "is_narrow",
    "is_pair",
    "must_fold_at_once",
    "parse_op",
    "scale",
]
