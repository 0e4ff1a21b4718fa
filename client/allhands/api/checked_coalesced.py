"""Module-level coalesced calls that check their lists as c10d does. As in `coalesced`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Unpack, overload

from allhands.api.calls import resolve_group, wait_or_return
from allhands.api.default_world import AnyGroup
from allhands.c10d import AllgatherOptions, ProcessGroup
from allhands.collectives import arguments
from allhands.collectives.arguments import AnyArray
from allhands.collectives.reduction import ReduceOp
from allhands.engine.work.work import Work
from allhands.group.group import Group
from allhands.options import CallOptions, read_options
from allhands.tracebacks import trim_traceback

if TYPE_CHECKING:

    @overload
    def all_reduce_coalesced(
        arrays: Sequence[AnyArray],
        op: ReduceOp | str = ReduceOp.SUM,
        group: AnyGroup = None,
        async_op: Literal[False] = False,
        **options: Unpack[CallOptions],
    ) -> None: ...
    @overload
    def all_reduce_coalesced(
        arrays: Sequence[AnyArray],
        op: ReduceOp | str = ReduceOp.SUM,
        group: Group | None = None,
        *,
        async_op: Literal[True],
        **options: Unpack[CallOptions],
    ) -> Work: ...
    @overload
    def all_reduce_coalesced(
        arrays: Sequence[AnyArray],
        op: ReduceOp | str = ReduceOp.SUM,
        group: AnyGroup = None,
        async_op: bool = False,
        **options: Unpack[CallOptions],
    ) -> Work | None: ...


def all_reduce_coalesced(
    arrays: Sequence[AnyArray],
    op: ReduceOp | str = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
    **options: Unpack[CallOptions],
) -> Work | None:
    """Overwrite each array with the reduction of all ranks' arrays.

    A failed call leaves the arrays as they were. Errors are as for `all_reduce`.

    Args:
        arrays: writeable arrays of one numeric dtype; same shapes on all ranks.
    """
    try:
        if (found := resolve_group(group, True, "all_reduce_coalesced", options)) is None:
            return None
        _check_one_dtype(arrays, "arrays")
        work = found.all_reduce_coalesced(arrays, op, **options)
        return wait_or_return(work, async_op)
    except Exception as error:
        trim_traceback(error)
        raise


if TYPE_CHECKING:

    @overload
    def all_gather_coalesced(
        output_lists: Sequence[Sequence[AnyArray]],
        inputs: Sequence[AnyArray],
        group: AnyGroup = None,
        async_op: Literal[False] = False,
        **options: Unpack[CallOptions],
    ) -> None: ...
    @overload
    def all_gather_coalesced(
        output_lists: Sequence[Sequence[AnyArray]],
        inputs: Sequence[AnyArray],
        group: Group | None = None,
        *,
        async_op: Literal[True],
        **options: Unpack[CallOptions],
    ) -> Work: ...
    @overload
    def all_gather_coalesced(
        output_lists: Sequence[Sequence[AnyArray]],
        inputs: Sequence[AnyArray],
        group: AnyGroup = None,
        async_op: bool = False,
        **options: Unpack[CallOptions],
    ) -> Work | None: ...


def all_gather_coalesced(
    output_lists: Sequence[Sequence[AnyArray]],
    inputs: Sequence[AnyArray],
    group: AnyGroup = None,
    async_op: bool = False,
    **options: Unpack[CallOptions],
) -> Work | None:
    """Fill `output_lists[j]` with the inputs of rank j.

    A failed call leaves the arrays as they were. Errors are as for `all_reduce`.

    Args:
        output_lists: for each rank a list of writeable arrays like `inputs`, C-contiguous.
        inputs: arrays of one dtype, same shapes on all ranks; only read.
    """
    try:
        if (found := resolve_group(group, True, "all_gather_coalesced", options)) is None:
            return None
        _check_one_dtype(inputs, "inputs")
        for at, one in enumerate(_check_list(output_lists, "output_tensor_lists")):
            _check_one_dtype(one, f"output_tensor_lists[{at}]")
        timeout, label = read_options("all_gather_coalesced", options)
        outputs = [
            [
                arguments.to_output(one, f"output_tensor_lists[{j}][{i}]")
                for i, one in enumerate(part)
            ]
            for j, part in enumerate(output_lists)
        ]
        sources = [arguments.to_input(one, f"inputs[{i}]") for i, one in enumerate(inputs)]
        work = ProcessGroup(found).allgather_coalesced(
            outputs, sources, AllgatherOptions(timeout, async_op, label)
        )
        return wait_or_return(work, async_op)
    except Exception as error:
        trim_traceback(error)
        raise


def _check_one_dtype(arrays: object, name: str) -> None:
    """Check a list of arrays of one dtype, as c10d demands."""
    found = [
        arguments.check_input(one, f"{name}[{at}]")
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
