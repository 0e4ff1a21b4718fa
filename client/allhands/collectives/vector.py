"""Collectives on arrays of which each rank has another size: what is not known travels first.

Shapes go ahead, 8 bytes for each dimension; arrays follow in one exchange. What is given back are
new arrays.
"""

from collections.abc import Generator, Sequence

import numpy as np
from numpy.typing import NDArray

from allhands.collectives.arguments import AnyArray
from allhands.collectives.composite_call import Chain, Movement, Moves, Steps
from allhands.collectives.reduction import ReduceOp, fold
from allhands.collectives.signature import Call
from allhands.data.dtypes import dtype_of, name_of
from allhands.errors import CollectiveMismatch

_MOST_DIMENSIONS = 64
"""As NumPy has it."""
_ROW = 1 + _MOST_DIMENSIONS
_NAME = 256
"""Bytes for the name of a dtype."""
Row = NDArray[np.int64]


def all_gather(x: AnyArray) -> Chain:
    """Give every rank the arrays of all; equal dtypes."""

    def steps(moves: Moves) -> Steps:
        shapes = yield from _shapes(moves, x)
        found = [np.empty(shape, x.dtype) for shape in shapes]
        if len(set(shapes)) == 1:
            yield moves.all_gather(found, x)
        else:
            yield moves.all_to_all(found, [x] * moves.size)
        return found

    return Chain(Call("all_gather_v", str(x.dtype)), steps)


def gather(x: AnyArray, root: int) -> Chain:
    """Give the arrays of all ranks to one; None to the others; equal dtypes."""

    def steps(moves: Moves) -> Steps:
        shapes = yield from _shapes(moves, x)
        nothing = np.empty(0, x.dtype)
        is_root = moves.rank == root
        found = [np.empty(shape if is_root else 0, x.dtype) for shape in shapes]
        given = [x if rank == root else nothing for rank in range(moves.size)]
        yield moves.all_to_all(found, given)
        return found if is_root else None

    return Chain(Call("gather_v", str(x.dtype), root=root), steps)


def scatter(arrays: Sequence[AnyArray] | None, root: int) -> Chain:
    """Give each rank its array of those that the root has; others need not know the dtype."""
    rows = None if arrays is None else [_described(array) for array in arrays]

    def steps(moves: Moves) -> Steps:
        width = _ROW * 8 + _NAME
        row = np.zeros(width, np.uint8)
        yield moves.scatter(row, rows, root)
        shape = _shape(row[: _ROW * 8].view(np.int64))
        dtype = dtype_of(row[_ROW * 8 :].tobytes().rstrip(b"\0").decode())
        found = np.empty(shape, dtype)
        nothing = np.empty(0, dtype)
        taken = [found if rank == root else nothing for rank in range(moves.size)]
        given = [nothing] * moves.size if arrays is None else list(arrays)
        yield moves.all_to_all(taken, given)
        return found

    return Chain(Call("scatter_v", root=root), steps)


def all_to_all(arrays: Sequence[AnyArray]) -> Chain:
    """Give `arrays[j]` to rank j, return what each rank gives to this one; equal dtypes."""
    dtype = arrays[0].dtype

    def steps(moves: Moves) -> Steps:
        rows = np.stack([_row(array) for array in arrays])
        heard = np.empty_like(rows)
        yield moves.all_to_all_single(heard, rows)
        found = [np.empty(_shape(row), dtype) for row in heard]
        yield moves.all_to_all(found, list(arrays))
        return found

    return Chain(Call("all_to_all_v", str(dtype)), steps)


def reduce_scatter(arrays: Sequence[AnyArray], op: ReduceOp, into: AnyArray | None = None) -> Chain:
    """Return the combination of what all ranks have in `arrays[rank]`, in the order of ranks.

    With `into` it is written there when all has come, and a list of that is given back.
    """
    dtype = arrays[0].dtype

    def steps(moves: Moves) -> Steps:
        mine = np.stack([_row(array) for array in arrays])
        rows = np.empty((moves.size, *mine.shape), np.int64)
        yield moves.all_gather_into_tensor(rows, mine)
        if (rows != rows[0]).any():
            raise _unlike("reduce_scatter_v", rows)
        shape = arrays[moves.rank].shape
        parts = [np.empty(shape, dtype) for _ in range(moves.size)]
        yield moves.all_to_all(parts, list(arrays))
        found = np.empty(shape, dtype)
        fold(op, [part.reshape(-1) for part in parts], found.reshape(-1), moves.size)
        if into is None:
            return found
        into[...] = found
        return [into]

    return Chain(Call("reduce_scatter_v", str(dtype), reduce=op.name), steps)


def _shapes(moves: Moves, x: AnyArray) -> Generator[Movement, None, list[tuple[int, ...]]]:
    """Let all ranks know the shapes of all."""
    rows = np.empty((moves.size, _ROW), np.int64)
    yield moves.all_gather_into_tensor(rows, _row(x))
    return [_shape(row) for row in rows]


def _row(x: AnyArray) -> Row:
    row = np.zeros(_ROW, np.int64)
    row[0] = x.ndim
    row[1 : 1 + x.ndim] = x.shape
    return row


def _shape(row: Row) -> tuple[int, ...]:
    return tuple(row[1 : 1 + int(row[0])].tolist())


def _described(x: AnyArray) -> NDArray[np.uint8]:
    name = np.zeros(_NAME, np.uint8)
    text = name_of(x.dtype).encode()
    if len(text) > _NAME:
        raise TypeError(f"{x.dtype} has a description of more than {_NAME} bytes")
    name[: len(text)] = np.frombuffer(text, np.uint8)
    return np.concatenate([_row(x).view(np.uint8), name])


def _unlike(operation: str, rows: Row) -> CollectiveMismatch:
    table = {
        rank: f"{operation}(shapes {[_shape(row) for row in one]})" for rank, one in enumerate(rows)
    }
    told = "; ".join(f"rank {rank}: {row}" for rank, row in table.items())
    return CollectiveMismatch(f"{operation}: the ranks bring blocks of other shapes: {told}", table)
