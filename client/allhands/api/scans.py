"""Module-level prefix reductions: scan and exscan. Arguments as in `collectives`."""

from allhands.api.calls import resolve_group, wait_or_return
from allhands.api.default_world import AnyGroup
from allhands.collectives.arguments import AnyArray
from allhands.collectives.reduction import ReduceOp
from allhands.engine.work.work import Work


def scan(
    x: AnyArray,
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Overwrite `x` with the combination of the first rank's to this one's, in their order.

    AVG is not defined. A call that fails leaves `x` as it was.
    """
    if (found := resolve_group(group, True, "scan")) is None:
        return None
    return wait_or_return(found.scan(x, op, timeout=timeout, label=label), async_op)


def exscan(
    x: AnyArray,
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Overwrite `x` with the combination of the ranks before this one; the first keeps its own.

    AVG is not defined. A call that fails leaves `x` as it was.
    """
    if (found := resolve_group(group, True, "exscan")) is None:
        return None
    return wait_or_return(found.exscan(x, op, timeout=timeout, label=label), async_op)
