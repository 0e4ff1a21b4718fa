"""Coalesced collectives: many small arrays packed into few large buckets.

Arrays of one dtype share a bucket, in their order, until the bucket is full. A rank's own arrays
are written after all buckets have arrived.
"""

from collections.abc import Sequence

import numpy as np

from allhands.collectives.buffer import Array
from allhands.collectives.composite_call import CompositeCall, StepBuilder, StepGenerator
from allhands.collectives.core_call import CoalescedReduction
from allhands.collectives.reduction import OPS, ReduceOp, check
from allhands.collectives.request import name_dtype
from allhands.collectives.signature import CallSignature, Shape, format_shape

Shapes = Sequence[Shape]
"""Of the arrays as callers gave them, on which ranks must agree."""
BUCKET_BYTES = 16 << 20
"""Of a bucket, unless one array is larger."""


def make_buckets(arrays: Sequence[Array], limit: int) -> list[list[int]]:
    """Return the places of the arrays, put together by dtype up to `limit` bytes."""
    found: list[list[int]] = []
    latest: dict[np.dtype[np.generic], tuple[list[int], int]] = {}
    for at, array in enumerate(arrays):
        bucket, filled = latest.get(array.dtype, ([], limit + 1))
        if filled + array.nbytes > limit:
            bucket, filled = [], 0
            found.append(bucket)
        bucket.append(at)
        latest[array.dtype] = bucket, filled + array.nbytes
    return found


def all_reduce(
    arrays: Sequence[Array], shapes: Shapes, op: ReduceOp, result: object
) -> CompositeCall:
    """Overwrite each of the 1-D arrays with the combination of all ranks'."""
    for array in arrays:
        check(op, array.dtype)
    groups = make_buckets(arrays, BUCKET_BYTES)

    def generate_steps(builder: StepBuilder) -> StepGenerator:
        packed = []
        for group in groups:
            packed.append(np.concatenate([arrays[at] for at in group]))
            yield builder.all_reduce(packed[-1], op)
        for group, whole in zip(groups, packed, strict=True):
            _unpack(whole, [arrays[at] for at in group])
        return result

    call = _make_signature("all_reduce_coalesced", arrays, shapes, op.name)
    core_call = None
    if len(groups) == 1 and op in OPS:
        core_call = CoalescedReduction(list(arrays), list(shapes), op, result)
    return CompositeCall(call, generate_steps, arrays, core_call=core_call, sources=arrays)


def broadcast(
    arrays: Sequence[Array], shapes: Shapes, root: int, limit: int, result: object
) -> CompositeCall:
    """Overwrite each of the 1-D arrays with the root's, in buckets of `limit` bytes."""
    groups = make_buckets(arrays, limit)

    def generate_steps(builder: StepBuilder) -> StepGenerator:
        packed = []
        for group in groups:
            packed.append(np.concatenate([arrays[at] for at in group]))
            yield builder.broadcast(packed[-1], root)
        if builder.rank != root:
            for group, whole in zip(groups, packed, strict=True):
                _unpack(whole, [arrays[at] for at in group])
        return result

    call = _make_signature("broadcast_coalesced", arrays, shapes, root=root)
    return CompositeCall(call, generate_steps, arrays, sources=arrays)


def all_gather(
    outputs: Sequence[Sequence[Array]],
    inputs: Sequence[Array],
    shapes: Shapes,
    name: str,
    result: object,
) -> CompositeCall:
    """Fill `outputs[i]`, a 1-D array for each rank, with every rank's `inputs[i]`."""
    groups = make_buckets(inputs, BUCKET_BYTES)

    def generate_steps(builder: StepBuilder) -> StepGenerator:
        gathered = []
        for group in groups:
            packed = np.concatenate([inputs[at] for at in group])
            gathered.append(np.empty((builder.size, packed.size), packed.dtype))
            yield builder.all_gather_into_tensor(gathered[-1], packed)
        for group, found in zip(groups, gathered, strict=True):
            for rank, row in enumerate(found):
                _unpack(row, [outputs[at][rank] for at in group])
        return result

    written = [block for one in outputs for block in one]
    call = _make_signature(name, inputs, shapes)
    return CompositeCall(call, generate_steps, written, has_blocks=True, sources=inputs)


def reduce_scatter(
    outputs: Sequence[Array],
    inputs: Sequence[Sequence[Array]],
    shapes: Shapes,
    op: ReduceOp,
    result: object,
) -> CompositeCall:
    """Overwrite `outputs[i]` with the reduction of all ranks' `inputs[i][rank]`.

    `shapes` are those of one rank's share of each.
    """
    for array in outputs:
        check(op, array.dtype)
    groups = make_buckets(outputs, BUCKET_BYTES)

    def generate_steps(builder: StepBuilder) -> StepGenerator:
        scattered = []
        for group in groups:
            packed = np.concatenate(
                [inputs[at][rank] for rank in range(builder.size) for at in group]
            )
            scattered.append(np.empty(packed.size // builder.size, packed.dtype))
            yield builder.reduce_scatter_tensor(scattered[-1], packed, op)
        for group, found in zip(groups, scattered, strict=True):
            _unpack(found, [outputs[at] for at in group])
        return result

    call = _make_signature("reduce_scatter_tensor_coalesced", outputs, shapes, op.name)
    sources = [block for one in inputs for block in one]
    return CompositeCall(call, generate_steps, outputs, has_blocks=True, sources=sources)


def check_list(arrays: object, name: str) -> list[object]:
    """Return a list or tuple of at least one item.

    Raises:
        TypeError: neither a list nor a tuple.
        ValueError: the list is empty.
    """
    if not isinstance(arrays, list | tuple):
        raise TypeError(f"{name} must be a list of arrays, not {type(arrays).__name__}")
    if not arrays:
        raise ValueError(f"{name} is empty: give at least one array")
    return list(arrays)


def _make_signature(
    name: str,
    arrays: Sequence[Array],
    shapes: Shapes,
    reduce: str = "",
    root: int | None = None,
) -> CallSignature:
    # Ranks must agree on all of it: another cut would give other arrays.
    layout = ",".join(
        f"{name_dtype(array.dtype)}[{format_shape(shape)}]"
        for array, shape in zip(arrays, shapes, strict=True)
    )
    return CallSignature(name, reduce=reduce, root=root, layout=layout)


def _unpack(whole: Array, arrays: Sequence[Array]) -> None:
    at = 0
    for array in arrays:
        array[...] = whole[at : at + array.size]
        at += array.size
