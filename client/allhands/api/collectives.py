"""Module-level collectives: plain functions on a default group, as torch.distributed has them.

`group` is what `new_group` gave, None for the whole world. Ranks given here (`src`, `dst`) are
ranks of the world, whatever the group. A call returns None when it has ended, and raises what went
wrong; with `async_op=True` it returns a `Work` at once. `timeout` is in seconds and defaults to the
group's; `label` is a name of yours for the call, for people who look.
"""

from collections.abc import Sequence
from datetime import timedelta

from allhands.api import default_world
from allhands.api.calls import find_group_rank, resolve_group, to_group_rank, wait_or_return
from allhands.api.default_world import AnyGroup
from allhands.collectives.arguments import AnyArray
from allhands.collectives.reduction import ReduceOp
from allhands.engine.work.persistent import PersistentCall
from allhands.engine.work.work import Work


def broadcast(
    x: AnyArray,
    src: int = 0,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Overwrite `x` on every rank with that of rank `src`."""
    comm = None if async_op else (group or default_world.current_group).order.comm
    if comm is not None and comm.broadcast(
        x, src if group is None else find_group_rank(group, src), timeout, label
    ):
        return None
    if (found := resolve_group(group, async_op, "broadcast")) is None:
        return None
    return wait_or_return(
        found.broadcast(x, to_group_rank(found, src, "src"), timeout=timeout, label=label), async_op
    )


def all_reduce(
    x: AnyArray,
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Overwrite `x` on every rank with the combination of all, the same bits everywhere.

    When it fails after data has moved, `x` is undefined.
    """
    comm = None if async_op else (group or default_world.current_group).order.comm
    if comm is not None and comm.all_reduce(x, op, timeout, label):
        return None
    if (found := resolve_group(group, async_op, "all_reduce")) is None:
        return None
    return wait_or_return(found.all_reduce(x, op, timeout=timeout, label=label), async_op)


def all_reduce_init(
    x: AnyArray,
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> PersistentCall | None:
    """Prepare an `all_reduce` of `x` that is made many times: `start()`, `wait()`, and again."""
    if (found := resolve_group(group, True, "all_reduce_init")) is None:
        return None
    return found.all_reduce_init(x, op, timeout=timeout, label=label)


def reduce(
    x: AnyArray,
    dst: int = 0,
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Overwrite `x` on rank `dst` with the combination of all; other ranks' `x` is only read."""
    comm = None if async_op else (group or default_world.current_group).order.comm
    if comm is not None and comm.reduce(
        x, dst if group is None else find_group_rank(group, dst), op, timeout, label
    ):
        return None
    if (found := resolve_group(group, async_op, "reduce")) is None:
        return None
    return wait_or_return(
        found.reduce(x, to_group_rank(found, dst, "dst"), op, timeout=timeout, label=label),
        async_op,
    )


def gather(
    x: AnyArray,
    gather_list: list[AnyArray] | None = None,
    dst: int = 0,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Fill `gather_list` on rank `dst`, by rank, with every rank's `x`; None elsewhere."""
    if (found := resolve_group(group, async_op, "gather")) is None:
        return None
    root = to_group_rank(found, dst, "dst")
    return wait_or_return(
        found.gather(x, gather_list, root, timeout=timeout, label=label), async_op
    )


def scatter(
    x: AnyArray,
    scatter_list: list[AnyArray] | None = None,
    src: int = 0,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Overwrite `x` with this rank's array of `scatter_list` on rank `src`; None elsewhere."""
    if (found := resolve_group(group, async_op, "scatter")) is None:
        return None
    root = to_group_rank(found, src, "src")
    return wait_or_return(
        found.scatter(x, scatter_list, root, timeout=timeout, label=label), async_op
    )


def all_gather(
    outputs: list[AnyArray],
    x: AnyArray,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Fill `outputs`, one array for each rank, with every rank's `x`."""
    if (found := resolve_group(group, async_op, "all_gather")) is None:
        return None
    return wait_or_return(found.all_gather(outputs, x, timeout=timeout, label=label), async_op)


def all_gather_into_tensor(
    output: AnyArray,
    x: AnyArray,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Fill `output`, world size times as long as `x`, with every rank's `x`, by rank."""
    comm = None if async_op else (group or default_world.current_group).order.comm
    if comm is not None and comm.all_gather_into_tensor(output, x, timeout, label):
        return None
    if (found := resolve_group(group, async_op, "all_gather_into_tensor")) is None:
        return None
    return wait_or_return(
        found.all_gather_into_tensor(output, x, timeout=timeout, label=label), async_op
    )


def reduce_scatter(
    output: AnyArray,
    inputs: list[AnyArray],
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Overwrite `output` with the combination of all ranks' `inputs[this rank]`."""
    if (found := resolve_group(group, async_op, "reduce_scatter")) is None:
        return None
    return wait_or_return(
        found.reduce_scatter(output, inputs, op, timeout=timeout, label=label), async_op
    )


def reduce_scatter_tensor(
    output: AnyArray,
    x: AnyArray,
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Overwrite `output` with this rank's share of the combination of all ranks' `x`."""
    comm = None if async_op else (group or default_world.current_group).order.comm
    if comm is not None and comm.reduce_scatter_tensor(output, x, op, timeout, label):
        return None
    if (found := resolve_group(group, async_op, "reduce_scatter_tensor")) is None:
        return None
    return wait_or_return(
        found.reduce_scatter_tensor(output, x, op, timeout=timeout, label=label), async_op
    )


def all_to_all(
    outputs: list[AnyArray],
    inputs: list[AnyArray],
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Give `inputs[j]` to the j-th rank and fill `outputs[j]` with what it gives."""
    if (found := resolve_group(group, async_op, "all_to_all")) is None:
        return None
    return wait_or_return(found.all_to_all(outputs, inputs, timeout=timeout, label=label), async_op)


def all_to_all_single(
    output: AnyArray,
    x: AnyArray,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Give each rank its rows of `x`, fill `output` with the rows they give; None: equal shares."""
    ragged = output_split_sizes is not None or input_split_sizes is not None
    comm = None if async_op or ragged else (group or default_world.current_group).order.comm
    if comm is not None and comm.all_to_all_single(output, x, timeout, label):
        return None
    if (found := resolve_group(group, async_op, "all_to_all_single")) is None:
        return None
    work = found.all_to_all_single(
        output, x, output_split_sizes, input_split_sizes, timeout=timeout, label=label
    )
    return wait_or_return(work, async_op)


def barrier(
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Return when every rank of the group has called it."""
    comm = None if async_op else (group or default_world.current_group).order.comm
    if comm is not None and comm.barrier(timeout, label):
        return None
    if (found := resolve_group(group, async_op, "barrier")) is None:
        return None
    return wait_or_return(found.barrier(timeout=timeout, label=label), async_op)


def monitored_barrier(
    group: AnyGroup = None,
    timeout: float | timedelta | None = None,
    wait_all_ranks: bool = False,
    *,
    label: str | None = None,
) -> None:
    """Return when every rank of the group has called it, or tell all of them who has not.

    It goes by the coordinator and is slow: for debugging, and where a rank may well be missing. All
    ranks are told the same, the late ones too, whichever they are.

    Args:
        timeout: seconds; of the first rank that has waited for so long.
        wait_all_ranks: name every rank that did not pass in the error, not only the first; its
            `verdict` has all of them in any case.

    Raises:
        CollectiveTimeout: ranks did not come in time.
        CoordinatorUnavailable: there is no coordinator any more.
    """
    if (found := resolve_group(group, True, "monitored_barrier")) is None:
        return
    limit = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    wait_or_return(found.monitored_barrier(limit, wait_all_ranks, label=label), False)
