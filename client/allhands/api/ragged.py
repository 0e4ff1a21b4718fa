"""Module-level collectives on arrays of sizes unknown to other ranks (v-variants).

Each returns what it gives once it has ended, or with `async_op=True` a `Work` at once, whose
`result()` is that; None on a rank that is not in the group. Otherwise they are as the calls of
`collectives`, and like all calls made of several they go through the group's queue.
"""

from collections.abc import Sequence
from typing import Any, Unpack

from allhands.api.calls import resolve_group, to_group_rank, wait_or_return
from allhands.api.default_world import AnyGroup
from allhands.collectives.arguments import AnyArray
from allhands.collectives.reduction import ReduceOp
from allhands.engine.work.work import Work
from allhands.options import CallOptions


def all_gather_v(
    x: AnyArray, group: AnyGroup = None, async_op: bool = False, **options: Unpack[CallOptions]
) -> Any:
    """Return every rank's `x`, of any shapes, as a list of new arrays.

    Results are new arrays, which the caller owns. With `async_op` the call returns a `Work`, whose
    `result()` gives the same.

    Args:
        x: array of any shape, contiguous or not; one dtype on all ranks.

    Raises:
        TypeError, ValueError: an array does not fit; nothing was sent.
        CollectiveMismatch, CollectiveTimeout, PeerFailed, GroupAborted: the call failed.
    """
    if (found := resolve_group(group, True, "all_gather_v", options)) is None:
        return None
    return wait_result(found.all_gather_v(x, **options), async_op)


def gather_v(
    x: AnyArray,
    dst: int = 0,
    group: AnyGroup = None,
    async_op: bool = False,
    **options: Unpack[CallOptions],
) -> Any:
    """Return every rank's `x`, of any shapes, on rank `dst`; None elsewhere.

    Results are new arrays, which the caller owns. With `async_op` the call returns a `Work`, whose
    `result()` gives the same.

    Args:
        x: array of any shape, contiguous or not; one dtype on all ranks.
        dst: rank in the world.

    Raises:
        TypeError, ValueError: an array does not fit; nothing was sent.
        CollectiveMismatch, CollectiveTimeout, PeerFailed, GroupAborted: the call failed.
    """
    if (found := resolve_group(group, True, "gather_v", options)) is None:
        return None
    root = to_group_rank(found, dst, "dst")
    return wait_result(found.gather_v(x, root, **options), async_op)


def scatter_v(
    scatter_list: Sequence[AnyArray] | None = None,
    src: int = 0,
    group: AnyGroup = None,
    async_op: bool = False,
    **options: Unpack[CallOptions],
) -> Any:
    """Return this rank's array, of any shape, of the list on rank `src`.

    Results are new arrays, which the caller owns. With `async_op` the call returns a `Work`, whose
    `result()` gives the same.

    Args:
        scatter_list: on `src` one array for each rank, of any shapes and one dtype; None elsewhere.
        src: rank in the world.

    Raises:
        TypeError, ValueError: an array does not fit; nothing was sent.
        CollectiveMismatch, CollectiveTimeout, PeerFailed, GroupAborted: the call failed.
    """
    if (found := resolve_group(group, True, "scatter_v", options)) is None:
        return None
    root = to_group_rank(found, src, "src")
    return wait_result(found.scatter_v(scatter_list, root, **options), async_op)


def all_to_all_v(
    inputs: Sequence[AnyArray],
    group: AnyGroup = None,
    async_op: bool = False,
    **options: Unpack[CallOptions],
) -> Any:
    """Send `inputs[j]` to rank j; return the arrays received, by rank.

    Results are new arrays, which the caller owns. With `async_op` the call returns a `Work`, whose
    `result()` gives the same.

    Args:
        inputs: one array for each rank, of any shapes and one dtype; only read.

    Raises:
        TypeError, ValueError: an array does not fit; nothing was sent.
        CollectiveMismatch, CollectiveTimeout, PeerFailed, GroupAborted: the call failed.
    """
    if (found := resolve_group(group, True, "all_to_all_v", options)) is None:
        return None
    return wait_result(found.all_to_all_v(inputs, **options), async_op)


def reduce_scatter_v(
    inputs: Sequence[AnyArray],
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
    **options: Unpack[CallOptions],
) -> Any:
    """Return the reduction of all ranks' `inputs` at this rank's index.

    Results are new arrays, which the caller owns. With `async_op` the call returns a `Work`, whose
    `result()` gives the same.

    Args:
        inputs: one array of a numeric dtype for each rank; shapes differ among items, not ranks.

    Raises:
        TypeError, ValueError: an array does not fit; nothing was sent.
        CollectiveMismatch, CollectiveTimeout, PeerFailed, GroupAborted: the call failed.
    """
    if (found := resolve_group(group, True, "reduce_scatter_v", options)) is None:
        return None
    return wait_result(found.reduce_scatter_v(inputs, op, **options), async_op)


def wait_result(work: Work, async_op: bool) -> Any:
    """Return the result of a call, or its work with `async_op`."""
    return work if async_op else wait_or_return(work, False) or work.result()
