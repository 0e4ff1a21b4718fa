"""Reductions that the native core does not know: movements, and what is done between them.

Every rank takes a block of all ranks' arrays, folds it in the order of ranks, and gives it to those
who want it: as much as any all_reduce carries. A PREMUL_SUM of numbers that are not widened on the
way is a SUM of what was multiplied.
"""

from collections.abc import Generator, Sequence

import numpy as np

from allhands.engine.buffer import Array
from allhands.engine.chain import Chain, Movement, Moves, Steps
from allhands.engine.native import Native
from allhands.engine.work import Result
from allhands.reduction import OPS, Premul, ReduceOp, fold, is_narrow, scaled

Some = Generator[Movement, None, None]
"""Movements after which something is written."""


def chain(native: Native, result: Result) -> Chain:
    """Return the steps of a reduction that was checked."""
    op = native.op
    assert op is not None

    def steps(moves: Moves) -> Steps:
        match native.kind:
            case "all_reduce":
                yield from all_reduce(moves, native.targets[0], op)
            case "reduce":
                target = native.targets[0] if native.targets else None
                yield from reduce(moves, native.sources[0], target, native.root, op)
            case _:
                yield from reduce_scatter(moves, native.sources, native.targets[0], op)
        return result

    return Chain(native.call, steps, native.targets)


def all_reduce(moves: Moves, array: Array, op: ReduceOp) -> Some:
    """In place on 1-D `array`; any operation."""
    if op in OPS:
        yield moves.all_reduce(array, op)
        return
    if (factor := _factor(op, array.dtype)) is not None:
        found = scaled(factor, array)
        yield moves.all_reduce(found)
    else:
        found = np.empty_like(array)
        block, parts = _room(moves, array)
        yield moves.all_to_all(parts, np.array_split(array, moves.size))
        fold(op, parts, block, moves.size)
        yield moves.all_to_all(np.array_split(found, moves.size), [block] * moves.size)
    array[...] = found


def reduce(moves: Moves, source: Array, target: Array | None, root: int, op: ReduceOp) -> Some:
    """From 1-D `source` to `target`, which the root alone has."""
    if (factor := _factor(op, source.dtype)) is not None:
        found = scaled(factor, source)
        yield moves.reduce(found, root)
    else:
        found = np.empty_like(source if target is not None else source[:0])
        block, parts = _room(moves, source)
        yield moves.all_to_all(parts, np.array_split(source, moves.size))
        fold(op, parts, block, moves.size)
        nothing = block[:0]
        given = [block if rank == root else nothing for rank in range(moves.size)]
        yield moves.all_to_all(np.array_split(found, moves.size), given)
    if target is not None:
        target[...] = found


def reduce_scatter(moves: Moves, sources: Sequence[Array], target: Array, op: ReduceOp) -> Some:
    """From 1-D `sources`, one for each rank, to `target`; any operation."""
    if op in OPS:
        yield moves.reduce_scatter(target, list(sources), op)
        return
    if (factor := _factor(op, target.dtype)) is not None:
        found = np.empty_like(target)
        yield moves.reduce_scatter(found, [scaled(factor, source) for source in sources])
        target[...] = found
    else:
        parts = [np.empty_like(target) for _ in sources]
        yield moves.all_to_all(parts, list(sources))
        fold(op, parts, target, moves.size)


def _factor(op: ReduceOp, dtype: "np.dtype[np.generic]") -> int | float | None:
    """Return by what contributions may be multiplied before they are added up by others."""
    return op.value.factor if isinstance(op.value, Premul) and not is_narrow(dtype) else None


def _room(moves: Moves, array: Array) -> tuple[Array, list[Array]]:
    """Return memory for this rank's block of the result, and of all ranks' arrays."""
    length = np.array_split(array, moves.size)[moves.rank].size
    block, *parts = (np.empty(length, array.dtype) for _ in range(1 + moves.size))
    return block, parts
