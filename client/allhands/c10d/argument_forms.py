"""Argument forms of c10d: an array for a list of length 1, a root for options."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from allhands.c10d.options import AnyOptions
from allhands.collectives.arguments import AnyArray
from allhands.collectives.reduction import ReduceOp

Arrays: TypeAlias = Sequence[AnyArray]


def to_list(tensors: Any) -> list[Any] | tuple[Any, ...]:
    """Return a list, also for a single array."""
    return tensors if isinstance(tensors, list | tuple) else [tensors]


def nest_lists(single: object, per_rank: object) -> tuple[object, object]:
    """Return nested lists, also for a single array with a list for the ranks."""
    if not isinstance(single, np.ndarray):
        return single, [] if per_rank is None else per_rank
    has_none = per_rank is None or (isinstance(per_rank, list | tuple) and not per_rank)
    return [single], [] if has_none else [per_rank]


def split_root(
    opts: AnyOptions | int | None, root: int | None
) -> tuple[AnyOptions | None, int | None]:
    """Separate options from a root given in place of options."""
    return (None, opts) if isinstance(opts, int) else (opts, root)


def split_op(
    opts: AnyOptions | ReduceOp | None, op: ReduceOp | None
) -> tuple[AnyOptions | None, ReduceOp | None]:
    """Separate options from an operation given in place of options."""
    return (None, opts) if isinstance(opts, ReduceOp) else (opts, op)


def normalize_sizes(split_sizes: Sequence[int] | None) -> Sequence[int] | None:
    """Return split sizes; None for an empty list, meaning equal shares."""
    return None if split_sizes is None or len(split_sizes) == 0 else split_sizes
