"""Module-level prefix reductions: scan and exscan. Arguments as in `collectives`."""

from typing import Unpack

from allhands.api.calls import resolve_group, wait_or_return
from allhands.api.default_world import AnyGroup
from allhands.collectives.arguments import AnyArray
from allhands.collectives.reduction import ReduceOp
from allhands.engine.work.work import Work
from allhands.options import CallOptions


def scan(
    x: AnyArray,
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
    **options: Unpack[CallOptions],
) -> Work | None:
    """Overwrite `x` with the reduction of `x` of ranks 0 to this one.

    A failed call leaves `x` as it was. AVG is not defined. Errors are as for `all_reduce`.

    Args:
        x: array of a numeric dtype, C-contiguous and writeable; same shape and dtype on all ranks.
    """
    if (found := resolve_group(group, True, "scan", options)) is None:
        return None
    return wait_or_return(found.scan(x, op, **options), async_op)


def exscan(
    x: AnyArray,
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
    **options: Unpack[CallOptions],
) -> Work | None:
    """Overwrite `x` with the reduction of `x` of the ranks before this one.

    Rank 0 keeps its own `x`.
    A failed call leaves `x` as it was. AVG is not defined. Errors are as for `all_reduce`.

    Args:
        x: array of a numeric dtype, C-contiguous and writeable; same shape and dtype on all ranks.
    """
    if (found := resolve_group(group, True, "exscan", options)) is None:
        return None
    return wait_or_return(found.exscan(x, op, **options), async_op)
