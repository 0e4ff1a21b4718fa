"""Module-level collectives: plain functions on a default group, as in torch.distributed.

`group` is a result of `new_group`; None is the world. Ranks given here (`src`, `dst`) are ranks of
the world, whatever the group. A call returns None at its end, and raises the failure; with
`async_op=True` it returns a `Work` at once. `timeout` is in seconds and defaults to the group's;
`label` is a name for the call that logs, traces and errors show.
"""

from collections.abc import Sequence
from datetime import timedelta

from allhands.api.calls import find_group_rank, resolve_group, to_group_rank, wait_or_return
from allhands.api.default_world import AnyGroup, default
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
    """Overwrite `x` on every rank with the `x` of rank `src`.

    `group` None is the world; a rank outside the group gets a warning and None. With `async_op` the
    call returns a `Work`, and the arrays belong to the call until that has ended.

    Args:
        x: array of any shape and plain dtype, C-contiguous and writeable; same on all ranks.
        src: rank in the world.

    Raises:
        TypeError, ValueError: an array or an argument does not fit; nothing was sent or written.
        CollectiveMismatch: ranks made different calls; nothing was written.
        CollectiveTimeout, PeerFailed, GroupAborted: the call failed; `x` is undefined unless
            the error's `outputs_intact` is true.
    """
    comm = None if async_op else (group or default.group).order.comm
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
    """Overwrite `x` on every rank with the reduction of all ranks' `x`.

    `group` None is the world; a rank outside the group gets a warning and None. With `async_op` the
    call returns a `Work`, and the arrays belong to the call until that has ended.
    All ranks get the same bits.

    Args:
        x: array of any shape and numeric dtype, C-contiguous and writeable; same shape and dtype
            on all ranks. A sparse array receives new indices and values.
        op: SUM, AVG, MIN, MAX and others; see `ReduceOp`.

    Raises:
        TypeError, ValueError: an array or an argument does not fit; nothing was sent or written.
        CollectiveMismatch: ranks made different calls; nothing was written.
        CollectiveTimeout, PeerFailed, GroupAborted: the call failed; `x` is undefined unless
            the error's `outputs_intact` is true.
    """
    comm = None if async_op else (group or default.group).order.comm
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
    """Prepare a persistent `all_reduce` of `x`: `start()`, `wait()`, repeat."""
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
    """Overwrite `x` on rank `dst` with the reduction of all ranks' `x`.

    `group` None is the world; a rank outside the group gets a warning and None. With `async_op` the
    call returns a `Work`, and the arrays belong to the call until that has ended.

    Args:
        x: array of any shape and numeric dtype, same on all ranks. C-contiguous and writeable on
            `dst`; elsewhere only read.
        dst: rank in the world.

    Raises:
        TypeError, ValueError: an array or an argument does not fit; nothing was sent or written.
        CollectiveMismatch: ranks made different calls; nothing was written.
        CollectiveTimeout, PeerFailed, GroupAborted: the call failed; `x` on `dst` is undefined
            unless the error's `outputs_intact` is true.
    """
    comm = None if async_op else (group or default.group).order.comm
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
    """Fill `gather_list` on rank `dst` with every rank's `x`, in rank order.

    `group` None is the world; a rank outside the group gets a warning and None. With `async_op` the
    call returns a `Work`, and the arrays belong to the call until that has ended.

    Args:
        x: array of any shape and dtype, same on all ranks; only read.
        gather_list: on `dst` one C-contiguous array like `x` for each rank; None elsewhere.
        dst: rank in the world.

    Raises:
        TypeError, ValueError: an array or an argument does not fit; nothing was sent or written.
        CollectiveMismatch: ranks made different calls; nothing was written.
        CollectiveTimeout, PeerFailed, GroupAborted: the call failed; `gather_list` is undefined
            unless the error's `outputs_intact` is true.
    """
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
    """Overwrite `x` with this rank's array of `scatter_list` on rank `src`.

    `group` None is the world; a rank outside the group gets a warning and None. With `async_op` the
    call returns a `Work`, and the arrays belong to the call until that has ended.

    Args:
        x: C-contiguous, writeable array of any shape and dtype, same on all ranks.
        scatter_list: on `src` one array like `x` for each rank, only read; None elsewhere.
        src: rank in the world.

    Raises:
        TypeError, ValueError: an array or an argument does not fit; nothing was sent or written.
        CollectiveMismatch: ranks made different calls; nothing was written.
        CollectiveTimeout, PeerFailed, GroupAborted: the call failed; `x` is undefined unless
            the error's `outputs_intact` is true.
    """
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
    """Fill `outputs` with every rank's `x`, in rank order.

    `group` None is the world; a rank outside the group gets a warning and None. With `async_op` the
    call returns a `Work`, and the arrays belong to the call until that has ended.

    Args:
        outputs: one C-contiguous, writeable array of the size and dtype of `x` for each rank.
        x: array of any shape and dtype, same on all ranks; only read.

    Raises:
        TypeError, ValueError: an array or an argument does not fit; nothing was sent or written.
        CollectiveMismatch: ranks made different calls; nothing was written.
        CollectiveTimeout, PeerFailed, GroupAborted: the call failed; `outputs` are undefined unless
            the error's `outputs_intact` is true.
    """
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
    """Fill `output` with every rank's `x`, concatenated in rank order.

    `group` None is the world; a rank outside the group gets a warning and None. With `async_op` the
    call returns a `Work`, and the arrays belong to the call until that has ended.

    Args:
        output: C-contiguous, writeable array of group size times `x.size` elements.
        x: array of any shape and dtype, same on all ranks; only read.

    Raises:
        TypeError, ValueError: an array or an argument does not fit; nothing was sent or written.
        CollectiveMismatch: ranks made different calls; nothing was written.
        CollectiveTimeout, PeerFailed, GroupAborted: the call failed; `output` is undefined unless
            the error's `outputs_intact` is true.
    """
    comm = None if async_op else (group or default.group).order.comm
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
    """Overwrite `output` with the reduction of all ranks' `inputs[rank]`.

    `group` None is the world; a rank outside the group gets a warning and None. With `async_op` the
    call returns a `Work`, and the arrays belong to the call until that has ended.

    Args:
        output: C-contiguous, writeable array of any shape and numeric dtype, same on all ranks.
        inputs: one array of the size of `output` for each rank; only read.

    Raises:
        TypeError, ValueError: an array or an argument does not fit; nothing was sent or written.
        CollectiveMismatch: ranks made different calls; nothing was written.
        CollectiveTimeout, PeerFailed, GroupAborted: the call failed; `output` is undefined unless
            the error's `outputs_intact` is true.
    """
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
    """Overwrite `output` with this rank's block of the reduction of `x`.

    `group` None is the world; a rank outside the group gets a warning and None. With `async_op` the
    call returns a `Work`, and the arrays belong to the call until that has ended.

    Args:
        output: C-contiguous, writeable array of any shape and numeric dtype, same on all ranks.
        x: array of `output.size` times the group's size elements; block j is for rank j. Only read.

    Raises:
        TypeError, ValueError: an array or an argument does not fit; nothing was sent or written.
        CollectiveMismatch: ranks made different calls; nothing was written.
        CollectiveTimeout, PeerFailed, GroupAborted: the call failed; `output` is undefined unless
            the error's `outputs_intact` is true.
    """
    comm = None if async_op else (group or default.group).order.comm
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
    """Send `inputs[j]` to rank j and receive rank j's block in `outputs[j]`.

    `group` None is the world; a rank outside the group gets a warning and None. With `async_op` the
    call returns a `Work`, and the arrays belong to the call until that has ended.

    Args:
        outputs: one C-contiguous, writeable array for each rank, of the size that the rank sends.
        inputs: one array for each rank, of any sizes and one dtype; only read.

    Raises:
        TypeError, ValueError: an array or an argument does not fit; nothing was sent or written.
        CollectiveMismatch: ranks made different calls; nothing was written.
        CollectiveTimeout, PeerFailed, GroupAborted: the call failed; `outputs` are undefined unless
            the error's `outputs_intact` is true.
    """
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
    """Send each rank its rows of `x` and receive its rows in `output`.

    `group` None is the world; a rank outside the group gets a warning and None. With `async_op` the
    call returns a `Work`, and the arrays belong to the call until that has ended.

    Args:
        output: C-contiguous, writeable array; rows are along dimension 0.
        x: C-contiguous array of the same dtype; only read.
        output_split_sizes: rows received from each rank; None: equal shares.
        input_split_sizes: rows sent to each rank; None: equal shares.

    Raises:
        TypeError, ValueError: an array or an argument does not fit; nothing was sent or written.
        CollectiveMismatch: ranks made different calls; nothing was written.
        CollectiveTimeout, PeerFailed, GroupAborted: the call failed; `output` is undefined unless
            the error's `outputs_intact` is true.
    """
    ragged = output_split_sizes is not None or input_split_sizes is not None
    comm = None if async_op or ragged else (group or default.group).order.comm
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
    """Return when every rank of the group has called `barrier`.

    Earlier calls on the group have ended by then. Arguments and errors are as for `all_reduce`.
    """
    comm = None if async_op else (group or default.group).order.comm
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
    """Wait for every rank, or name the missing ones on all ranks.

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
