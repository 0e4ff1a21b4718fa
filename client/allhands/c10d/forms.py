"""The forms in which c10d takes arguments: one array for a list of one, a root for options."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from allhands.c10d.options import AnyOptions
from allhands.collectives.arguments import AnyArray
from allhands.collectives.reduction import ReduceOp

Arrays: TypeAlias = Sequence[AnyArray]


def several(tensors: Any) -> list[Any] | tuple[Any, ...]:
    """Return a list also for one array alone."""
    return tensors if isinstance(tensors, list | tuple) else [tensors]


def nested(one: object, each: object) -> tuple[object, object]:
    """Return lists also for one array alone, which comes with a list of arrays for the ranks."""
    if not isinstance(one, np.ndarray):
        return one, [] if each is None else each
    has_none = each is None or (isinstance(each, list | tuple) and not each)
    return [one], [] if has_none else [each]


def rooted(opts: AnyOptions | int | None, root: int | None) -> tuple[AnyOptions | None, int | None]:
    """Tell options from a root in their place."""
    return (None, opts) if isinstance(opts, int) else (opts, root)


def combined(
    opts: AnyOptions | ReduceOp | None, op: ReduceOp | None
) -> tuple[AnyOptions | None, ReduceOp | None]:
    """Tell options from an operation in their place."""
    return (None, opts) if isinstance(opts, ReduceOp) else (opts, op)


def sizes(given: Sequence[int] | None) -> Sequence[int] | None:
    """Return split sizes; None where an empty list says that shares are equal."""
    return None if given is None or len(given) == 0 else given
