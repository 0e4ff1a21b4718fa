"""Reductions that the native core does not know: movements, and what is done between them.

Every rank takes a block of all ranks' arrays, folds it in the order of ranks, and gives it to those
who want it: as much as any all_reduce carries. A PREMUL_SUM of numbers that are not widened on the
way is a SUM of what was multiplied.
"""

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from allhands.engine.buffer import Array
from allhands.engine.native import Native
from allhands.reduction import Premul, ReduceOp, fold, is_narrow, scaled

if TYPE_CHECKING:
    from allhands.engine.chain import Movement, Moves

Some = Generator["Movement", None, None]
"""Movements after which something is written."""


def movements(moves: "Moves", native: Native) -> Some:
    """Carry out a reduction that was checked."""
    assert native.op is not None
    match native.kind:
        case "all_reduce":
            yield from _all_reduce(moves, native.targets[0], native.op)
        case "reduce":
            target = native.targets[0] if native.targets else None
            yield from _reduce(moves, native.sources[0], target, native.root, native.op)
        case _:
            yield from _reduce_scatter(moves, native.sources, native.targets[0], native.op)


def _all_reduce(moves: "Moves", array: Array, op: ReduceOp) -> Some:
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


def _reduce(moves: "Moves", source: Array, target: Array | None, root: int, op: ReduceOp) -> Some:
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


def _reduce_scatter(moves: "Moves", sources: Sequence[Array], target: Array, op: ReduceOp) -> Some:
    found = np.empty_like(target)
    if (factor := _factor(op, target.dtype)) is not None:
        yield moves.reduce_scatter(found, [scaled(factor, source) for source in sources])
    else:
        parts = [np.empty_like(target) for _ in sources]
        yield moves.all_to_all(parts, list(sources))
        fold(op, parts, found, moves.size)
    target[...] = found


def _factor(op: ReduceOp, dtype: "np.dtype[np.generic]") -> int | float | None:
    """Return by what contributions may be multiplied before they are added up by others."""
    return op.value.factor if isinstance(op.value, Premul) and not is_narrow(dtype) else None


def _room(moves: "Moves", array: Array) -> tuple[Array, list[Array]]:
    """Return memory for this rank's block of the result, and of all ranks' arrays."""
    length = np.array_split(array, moves.size)[moves.rank].size
    block, *parts = (np.empty(length, array.dtype) for _ in range(1 + moves.size))
    return block, parts
