"""The all_reduce of sparse arrays: an all_gather of stored elements, combined on every rank."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from allhands.collectives.arguments import AnyArray
from allhands.collectives.composite_call import CompositeCall, StepBuilder, StepGenerator
from allhands.collectives.reduction import ReduceOp, check, fold
from allhands.collectives.signature import CallSignature
from allhands.data.sparse_array import Indices, SparseArray, sum_duplicates, unflatten_indices

StoredEntries: TypeAlias = tuple[Indices, AnyArray]
"""The numbers of some indices, each once, and the values there."""
OPS = (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MIN, ReduceOp.MAX)
"""Of which the combination of zeros is zero, and which need not be told of them."""


def combine_stored(op: ReduceOp, stored: Sequence[StoredEntries], divisor: int) -> StoredEntries:
    """Return the combination of stored elements at the indices that any rank stores.

    AVG is divided by `divisor`.
    """
    union = np.unique(np.concatenate([places for places, _ in stored]))
    like = stored[0][1]
    parts = np.zeros((len(stored), len(union), *like.shape[1:]), like.dtype)
    for part, (places, values) in zip(parts, stored, strict=True):
        part[np.searchsorted(union, places)] = values
    whole = np.empty(parts.shape[1:], parts.dtype)
    fold(op, [part.reshape(-1) for part in parts], whole.reshape(-1), divisor)
    return union, whole


def all_reduce(array: SparseArray, op: ReduceOp) -> CompositeCall:
    """Let `array` hold the combination of all ranks', in new `indices` and `values`.

    It is the combination of the dense arrays: where a rank stores nothing it brings zero.

    Raises:
        TypeError: an operation, or a dtype, for which there is none.
    """
    check(op, array.dtype)
    if op not in OPS:
        raise TypeError(
            f"unsupported reduction operation: {op.name} of sparse arrays is not defined; "
            "SUM, AVG, MIN and MAX are"
        )
    shape, dims, dtype = array.shape, array.sparse_dims, array.dtype
    rest = shape[dims:]
    places, values = sum_duplicates(array)

    def generate_steps(builder: StepBuilder) -> StepGenerator:
        size = builder.size
        counts = np.empty(size, np.int64)
        yield builder.all_gather_into_tensor(counts, np.array([len(places)], np.int64))
        all_places = [np.empty(count, np.int64) for count in counts]
        yield builder.all_to_all(all_places, [places] * size)
        all_values = [np.empty((count, *rest), dtype) for count in counts]
        yield builder.all_to_all(all_values, [values] * size)
        union, found = combine_stored(op, list(zip(all_places, all_values, strict=True)), size)
        return array.become(unflatten_indices(union, array), found)

    layout = f"{dtype}{list(shape)}, {dims} dimensions sparse"
    return CompositeCall(CallSignature("all_reduce", reduce=op.name, layout=layout), generate_steps)
