"""Scan and exscan: prefix reductions in the order of ranks.

Small arrays go to all ranks, each of which combines its prefix. Of large arrays every rank receives
a block from all ranks, combines all prefixes of the block, and returns each rank its own: twice the
traffic of an all_reduce. Of two ranks the former is as little traffic, in half of the messages.
"""

from collections.abc import Sequence

import numpy as np

from allhands.collectives.arguments import AnyArray
from allhands.collectives.buffer import Array
from allhands.collectives.composite_call import CompositeCall, StepBuilder, StepGenerator
from allhands.collectives.core_call import InPlaceCall
from allhands.collectives.reduction import OPS, ReduceOp, check, fold, get_dtype_name
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.signature import CallSignature, Shape
from allhands.data.blocks import copy_into

GATHERED_BYTES = 1 << 20
"""Of the arrays of all ranks together, of two of each, up to which all ranks are given them. On two
hosts of two ranks 64 KiB took 0.9 ms so, and 16 KiB in blocks 7."""


def scan(
    array: Array, op: ReduceOp, shape: Shape, *, exclusive: bool, result: AnyArray
) -> CompositeCall:
    """Overwrite 1-D `array` with the combination of the ranks up to this one.

    If `exclusive` without this one: rank 0 keeps what it has. It stands for `result`, on whose
    `shape` ranks agree.

    Raises:
        TypeError: `op` is not defined for the dtype, or for some of the ranks.
    """
    check(op, array.dtype)
    if op is ReduceOp.AVG:
        raise TypeError("AVG is not defined for a scan; use SUM and divide by rank + 1")
    name = "exscan" if exclusive else "scan"
    call = CallSignature(name, str(array.dtype), array.size, op.name, shape=shape)

    def scan_gathered(builder: StepBuilder) -> StepGenerator:
        found = np.empty((builder.size, array.size), array.dtype)
        yield builder.all_gather_into_tensor(found, array)
        _combine(op, list(found), array, builder.rank + (not exclusive))
        return result

    def scan_blocks(builder: StepBuilder) -> StepGenerator:
        mine = np.array_split(array, builder.size)
        block = mine[builder.rank]
        parts = [np.empty_like(block) for _ in range(builder.size)]
        yield builder.all_to_all(parts, mine)
        combined = [np.empty_like(block) for _ in range(builder.size)]
        for rank, place in enumerate(combined):
            _combine(op, parts, place, rank + (not exclusive))
        found = np.empty_like(array)
        yield builder.all_to_all(np.array_split(found, builder.size), combined)
        if not exclusive or builder.rank:
            copy_into(array, found)
        return result

    def generate_steps(builder: StepBuilder) -> StepGenerator:
        shares = 1 if builder.size == 2 else builder.size
        steps = scan_gathered if array.nbytes * shares <= GATHERED_BYTES else scan_blocks
        return (yield from steps(builder))

    core_call = None
    if op in OPS and get_dtype_name(array.dtype) is not None:
        request = CollectiveRequest(
            name, array.dtype, array.size, targets=[array], op=op, shape=shape
        )
        core_call = InPlaceCall(request, result)
    return CompositeCall(call, generate_steps, [array], core_call=core_call, sources=[array])


def _combine(op: ReduceOp, parts: Sequence[Array], out: Array, count: int) -> None:
    """Write the combination of the first `count` of `parts`; nothing where there are none."""
    if count:
        fold(op, parts[:count], out, 1)
