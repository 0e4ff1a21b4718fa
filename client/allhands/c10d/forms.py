"""The forms in which c10d takes arguments: one array for a list of one, a root for options."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from allhands.c10d.options import AnyOptions
from allhands.collectives.arguments import AnyArray
from allhands.collectives.reduction import ReduceOp

Arrays: TypeAlias = Sequence[AnyArray]


def to_list(tensors: Any) -> list[Any] | tuple[Any, ...]:
    """Return a list also for one array alone."""
    return tensors if isinstance(tensors, list | tuple) else [tensors]


def nest_lists(single: object, per_rank: object) -> tuple[object, object]:
    """Return lists also for one array alone, which comes with a list of arrays for the ranks."""
    if not isinstance(single, np.ndarray):
        return single, [] if per_rank is None else per_rank
    has_none = per_rank is None or (isinstance(per_rank, list | tuple) and not per_rank)
    return [single], [] if has_none else [per_rank]


def split_root(
    opts: AnyOptions | int | None, root: int | None
) -> tuple[AnyOptions | None, int | None]:
    """Tell options from a root in their place."""
    return (None, opts) if isinstance(opts, int) else (opts, root)


def split_op(
    opts: AnyOptions | ReduceOp | None, op: ReduceOp | None
) -> tuple[AnyOptions | None, ReduceOp | None]:
    """Tell options from an operation in their place."""
    return (None, opts) if isinstance(opts, ReduceOp) else (opts, op)


def normalize_sizes(split_sizes: Sequence[int] | None) -> Sequence[int] | None:
    """Return split sizes; None where an empty list says that shares are equal."""
    return None if split_sizes is None or len(split_sizes) == 0 else split_sizes
