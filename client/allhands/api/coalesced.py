"""Module-level calls on many arrays at once, which travel as few. As in `collectives`.

A call that fails leaves the arrays as they were.
"""

from collections.abc import Sequence

from allhands.api.calls import resolve_group, to_group_rank, wait_or_return
from allhands.api.default_world import AnyGroup
from allhands.c10d import AllgatherOptions, ProcessGroup
from allhands.collectives import arguments
from allhands.collectives.arguments import AnyArray
from allhands.collectives.composite import BROADCAST_BYTES
from allhands.collectives.reduction import ReduceOp
from allhands.engine.work.work import Work


def all_reduce_coalesced(
    arrays: Sequence[AnyArray],
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Overwrite each of the arrays, of one dtype, with the combination of all ranks'."""
    if (found := resolve_group(group, True, "all_reduce_coalesced")) is None:
        return None
    _check_one_dtype(arrays, "arrays")
    work = found.all_reduce_coalesced(arrays, op, timeout=timeout, label=label)
    return wait_or_return(work, async_op)


def broadcast_coalesced(
    arrays: Sequence[AnyArray],
    src: int = 0,
    buffer_size: int = BROADCAST_BYTES,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Overwrite each of the arrays, of any dtypes, with that of rank `src`.

    They travel in buckets of one dtype and `buffer_size` bytes, an array that is longer alone.
    """
    if (found := resolve_group(group, True, "broadcast_coalesced")) is None:
        return None
    root = to_group_rank(found, src, "src")
    work = found.broadcast_coalesced(arrays, root, buffer_size, timeout=timeout, label=label)
    return wait_or_return(work, async_op)


def all_gather_coalesced(
    output_lists: Sequence[Sequence[AnyArray]],
    inputs: Sequence[AnyArray],
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Fill `output_lists[j]`, arrays like the inputs, with those of the j-th rank; one dtype."""
    if (found := resolve_group(group, True, "all_gather_coalesced")) is None:
        return None
    _check_one_dtype(inputs, "inputs")
    for at, one in enumerate(_check_list(output_lists, "output_tensor_lists")):
        _check_one_dtype(one, f"output_tensor_lists[{at}]")
    options = AllgatherOptions(timeout, async_op, label)
    return wait_or_return(
        ProcessGroup(found).allgather_coalesced(output_lists, inputs, options), async_op
    )


def all_gather_into_tensor_coalesced(
    outputs: Sequence[AnyArray],
    inputs: Sequence[AnyArray],
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Fill each of `outputs` with every rank's input at its place, by rank."""
    if (found := resolve_group(group, True, "all_gather_into_tensor_coalesced")) is None:
        return None
    work = found.all_gather_into_tensor_coalesced(outputs, inputs, timeout=timeout, label=label)
    return wait_or_return(work, async_op)


def reduce_scatter_tensor_coalesced(
    outputs: Sequence[AnyArray],
    inputs: Sequence[AnyArray],
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Overwrite each of `outputs` with this rank's share of the combination of its input."""
    if (found := resolve_group(group, True, "reduce_scatter_tensor_coalesced")) is None:
        return None
    work = found.reduce_scatter_tensor_coalesced(outputs, inputs, op, timeout=timeout, label=label)
    return wait_or_return(work, async_op)


def _check_one_dtype(arrays: object, name: str) -> None:
    """Check a list of arrays that travel together, as c10d wants them."""
    found = [
        arguments.check_array(one, f"{name}[{at}]")
        for at, one in enumerate(_check_list(arrays, name))
    ]
    for at, one in enumerate(found):
        arguments.check_same_dtype(found[0], f"{name}[0]", one, f"{name}[{at}]")


def _check_list(arrays: object, name: str) -> Sequence[object]:
    if not isinstance(arrays, list | tuple):
        raise TypeError(
            f"Invalid function argument. {name} must be a list, not {type(arrays).__name__}"
        )
    return arrays
