"""Module-level persistent calls, prepared once and started repeatedly."""

from typing import Unpack

from allhands.api.calls import resolve_group
from allhands.api.default_world import AnyGroup
from allhands.collectives.arguments import AnyArray
from allhands.collectives.reduction import ReduceOp
from allhands.engine.work.persistent import PersistentCall
from allhands.options import CallOptions


def all_reduce_init(
    x: AnyArray,
    op: ReduceOp | str = ReduceOp.SUM,
    group: AnyGroup = None,
    **options: Unpack[CallOptions],
) -> PersistentCall | None:
    """Prepare a persistent `all_reduce` of `x`: `start()`, `wait()`, repeat."""
    if (found := resolve_group(group, True, "all_reduce_init", options)) is None:
        return None
    return found.all_reduce_init(x, op, **options)
