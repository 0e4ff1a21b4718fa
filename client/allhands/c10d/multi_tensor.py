"""Calls with several like arrays a rank, as if on several devices (multi-tensor).

What a rank has is put together first, goes as one, and is written to all places at the end.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from allhands.collectives import sparse
from allhands.collectives.arguments import AnyArray
from allhands.collectives.buffer import Array
from allhands.collectives.composite_call import CompositeCall, StepBuilder, StepGenerator
from allhands.collectives.reduction import PremulSum, ReduceOp, finish, fold
from allhands.collectives.signature import CallSignature
from allhands.data.sparse_array import SparseArray, sum_duplicates, unflatten_indices


def broadcast(
    views: Sequence[Array], root: int, root_tensor: int, result: Sequence[AnyArray]
) -> CompositeCall:
    """Overwrite all arrays on all ranks with an array of the root."""

    def steps(moves: StepBuilder) -> StepGenerator:
        whole = views[root_tensor].copy()
        yield moves.broadcast(whole, root)
        _fill(views, whole)
        return result

    call = _describe_call("broadcast", result, root=root)
    return CompositeCall(call, steps, views, sources=views)


def all_reduce(views: Sequence[Array], op: ReduceOp, result: Sequence[AnyArray]) -> CompositeCall:
    """Overwrite all arrays on all ranks with the reduction of all arrays."""

    def steps(moves: StepBuilder) -> StepGenerator:
        whole = np.empty_like(views[0])
        fold(_choose_local_op(op, whole.dtype), views, whole, len(views))
        yield moves.all_reduce(whole, op)
        _divide_average(op, whole, len(views))
        _fill(views, whole)
        return result

    call = _describe_call("all_reduce", result, op.name)
    return CompositeCall(call, steps, views, sources=views)


def all_gather(
    outputs: Sequence[Array],
    inputs: Sequence[Array],
    arrays: Sequence[AnyArray],
    result: object,
) -> CompositeCall:
    """Fill the outputs with all ranks' inputs, as concatenated lists.

    `inputs` are the elements of `arrays`, flat.
    """

    def steps(moves: StepBuilder) -> StepGenerator:
        mine = np.stack(inputs)
        whole = np.empty((moves.size * len(inputs), inputs[0].size), mine.dtype)
        yield moves.all_gather_into_tensor(whole, mine)
        for at, output in enumerate(outputs):
            output[...] = whole[at % len(whole)]
        return result

    return CompositeCall(_describe_call("all_gather", arrays), steps, outputs, sources=inputs)


def all_reduce_sparse(arrays: Sequence[SparseArray], op: ReduceOp) -> CompositeCall:
    """Reduce all sparse arrays of all ranks into each array."""
    mine = _combine(arrays, op)
    chain = sparse.all_reduce(mine, op)

    def steps(moves: StepBuilder) -> StepGenerator:
        yield from chain.generate_steps(moves)
        values = mine.values.copy()
        _divide_average(op, values.reshape(-1), len(arrays))
        return [array.become(mine.indices.copy(), values.copy()) for array in arrays]

    layout = f"{chain.call.layout}, {len(arrays)} arrays a rank"
    return CompositeCall(replace(chain.call, layout=layout), steps)


def _combine(arrays: Sequence[SparseArray], op: ReduceOp) -> SparseArray:
    """Return a new array, the reduction of like arrays."""
    stored = [sum_duplicates(array) for array in arrays]
    union, whole = sparse.combine_stored(_choose_local_op(op, arrays[0].dtype), stored, len(arrays))
    return SparseArray(unflatten_indices(union, arrays[0]), whole, arrays[0].shape)


def _choose_local_op(op: ReduceOp, dtype: "np.dtype[np.generic]") -> ReduceOp:
    """Return the reduction of a rank's own arrays before the collective's `op`."""
    return ReduceOp.SUM if isinstance(op.value, PremulSum) or _is_integer_average(op, dtype) else op


def _divide_average(op: ReduceOp, whole: Array, count: int) -> None:
    """Divide a local sum of `count` arrays by `count`."""
    if _is_integer_average(op, whole.dtype):
        finish(op, whole, count)


def _is_integer_average(op: ReduceOp, dtype: "np.dtype[np.generic]") -> bool:
    """Return whether `op` averages integers; averaging averages would round twice."""
    return op is ReduceOp.AVG and dtype.kind in "iu"


def _fill(views: Sequence[Array], whole: Array) -> None:
    for view in views:
        view[...] = whole


def _describe_call(
    name: str, arrays: Sequence[AnyArray], reduce: str = "", root: int | None = None
) -> CallSignature:
    """Describe a call with such arrays on every rank, all alike."""
    first = arrays[0]
    return CallSignature(
        name,
        str(first.dtype),
        first.size,
        reduce,
        root,
        layout=f"{len(arrays)} arrays a rank",
        shape=first.shape,
    )
