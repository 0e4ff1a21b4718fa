"""Calls in which every rank brings several arrays that are alike, as if they were on devices.

What a rank has is put together first, goes as one, and is written to all places at the end.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from allhands.collectives import sparse
from allhands.collectives.arguments import AnyArray
from allhands.collectives.buffer import Array
from allhands.collectives.composite_call import Chain, Moves, Steps
from allhands.collectives.reduction import Premul, ReduceOp, finish, fold
from allhands.collectives.signature import Call
from allhands.data.sparse_array import SparseArray, distinct, unflat


def broadcast(
    views: Sequence[Array], root: int, root_tensor: int, result: Sequence[AnyArray]
) -> Chain:
    """Overwrite all arrays, on all ranks, with one of the root's."""

    def steps(moves: Moves) -> Steps:
        whole = views[root_tensor].copy()
        yield moves.broadcast(whole, root)
        _fill(views, whole)
        return result

    return Chain(_call("broadcast", result, root=root), steps, views)


def all_reduce(views: Sequence[Array], op: ReduceOp, result: Sequence[AnyArray]) -> Chain:
    """Overwrite all arrays, on all ranks, with the combination of all of them."""

    def steps(moves: Moves) -> Steps:
        whole = np.empty_like(views[0])
        fold(_at_home(op, whole.dtype), views, whole, len(views))
        yield moves.all_reduce(whole, op)
        _settle(op, whole, len(views))
        _fill(views, whole)
        return result

    return Chain(_call("all_reduce", result, op.name), steps, views)


def all_gather(
    outputs: Sequence[Array],
    inputs: Sequence[Array],
    given: Sequence[AnyArray],
    result: object,
) -> Chain:
    """Fill the outputs with all ranks' inputs, again and again: lists of them end to end.

    The inputs are the elements of what was `given`.
    """

    def steps(moves: Moves) -> Steps:
        mine = np.stack(inputs)
        whole = np.empty((moves.size * len(inputs), inputs[0].size), mine.dtype)
        yield moves.all_gather_into_tensor(whole, mine)
        for at, output in enumerate(outputs):
            output[...] = whole[at % len(whole)]
        return result

    return Chain(_call("all_gather", given), steps, outputs)


def all_reduce_sparse(arrays: Sequence[SparseArray], op: ReduceOp) -> Chain:
    """Let all arrays, on all ranks, hold the combination of all of them."""
    mine = _combined(arrays, op)
    chain = sparse.all_reduce(mine, op)

    def steps(moves: Moves) -> Steps:
        yield from chain.steps(moves)
        values = mine.values.copy()
        _settle(op, values.reshape(-1), len(arrays))
        return [array.become(mine.indices.copy(), values.copy()) for array in arrays]

    layout = f"{chain.call.layout}, {len(arrays)} arrays a rank"
    return Chain(replace(chain.call, layout=layout), steps)


def _combined(arrays: Sequence[SparseArray], op: ReduceOp) -> SparseArray:
    """Return a new array that is the combination of these, which are alike."""
    stored = [distinct(array) for array in arrays]
    union, whole = sparse.combined(_at_home(op, arrays[0].dtype), stored, len(arrays))
    return SparseArray(unflat(union, arrays[0]), whole, arrays[0].shape)


def _at_home(op: ReduceOp, dtype: "np.dtype[np.generic]") -> ReduceOp:
    """Return what combines the arrays of a rank, so that the ranks' can be combined by `op`."""
    return ReduceOp.SUM if isinstance(op.value, Premul) or _is_quotient(op, dtype) else op


def _settle(op: ReduceOp, whole: Array, count: int) -> None:
    """Divide what was added up at home, `count` arrays, by as many."""
    if _is_quotient(op, whole.dtype):
        finish(op, whole, count)


def _is_quotient(op: ReduceOp, dtype: "np.dtype[np.generic]") -> bool:
    """Say whether it is an average of integers: those of averages would drop fractions twice."""
    return op is ReduceOp.AVG and dtype.kind in "iu"


def _fill(views: Sequence[Array], whole: Array) -> None:
    for view in views:
        view[...] = whole


def _call(name: str, arrays: Sequence[AnyArray], reduce: str = "", root: int | None = None) -> Call:
    """Describe a call in which every rank brings such arrays, all alike."""
    first = arrays[0]
    return Call(
        name,
        str(first.dtype),
        first.size,
        reduce,
        root,
        layout=f"{len(arrays)} arrays a rank",
        shape=first.shape,
    )
