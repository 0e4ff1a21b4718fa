"""Vector collectives (v-variants): arrays of different sizes, known to their senders alone.

The native core exchanges shapes and arrays in one call. Over links shapes go ahead, 8 bytes for
each dimension, and arrays follow in one exchange. Results are new arrays.
"""

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allhands.collectives import array_messages
from allhands.collectives.arguments import AnyArray
from allhands.collectives.buffer import Array
from allhands.collectives.composite_call import CompositeCall, Step, StepBuilder, StepGenerator
from allhands.collectives.core_call import (
    ArrayExchange,
    CoreCall,
    Exchange,
    Message,
    RaggedReduction,
    Received,
    SignedCall,
    sign_call,
)
from allhands.collectives.reduction import OPS, ReduceOp, fold
from allhands.collectives.request import name_dtype
from allhands.collectives.signature import Shape, join_shapes
from allhands.data.blocks import copy_array, copy_into
from allhands.data.dtypes import get_dtype_name, parse_dtype
from allhands.errors import CollectiveMismatch

_MAX_DIMENSIONS = 64
"""As NumPy has it."""
_ROW_LENGTH = 1 + _MAX_DIMENSIONS
_NAME_BYTES = 256
"""Bytes for the name of a dtype."""
Row = NDArray[np.int64]


def all_gather(x: AnyArray) -> CompositeCall:
    """Give every rank the arrays of all; equal dtypes."""

    def generate_steps(builder: StepBuilder) -> StepGenerator:
        shapes = yield from _exchange_shapes(builder, x)
        found = [np.empty(shape, x.dtype) for shape in shapes]
        if len(set(shapes)) == 1:
            yield builder.all_gather(found, x)
        else:
            yield builder.all_to_all(found, [x] * builder.size)
        return found

    def read(received: Received) -> list[AnyArray]:
        return _read_all(received, x)

    signed = sign_arrays("all_gather_v", x.dtype)
    exchange = ArrayExchange(signed, x)
    return CompositeCall(
        signed.call,
        generate_steps,
        core_call=exchange,
        sources=[x],
        pack=lambda: Exchange(signed, array_messages.pack_array(x), read),
    )


def gather(x: AnyArray, root: int) -> CompositeCall:
    """Gather the arrays of all ranks, of one dtype, in a list on the root; None elsewhere."""

    def generate_steps(builder: StepBuilder) -> StepGenerator:
        shapes = yield from _exchange_shapes(builder, x)
        nothing = np.empty(0, x.dtype)
        is_root = builder.rank == root
        found = [np.empty(shape if is_root else 0, x.dtype) for shape in shapes]
        given = [x if rank == root else nothing for rank in range(builder.size)]
        yield builder.all_to_all(found, given)
        return found if is_root else None

    def read(received: Received) -> list[AnyArray] | None:
        return _read_all(received, x) if received[root] is None else None

    def pack() -> Exchange:
        return Exchange(signed, {root: array_messages.pack_array(x)}, read, root, to_root=True)

    signed = sign_arrays("gather_v", x.dtype, root)
    exchange = ArrayExchange(signed, {root: x}, root)
    return CompositeCall(signed.call, generate_steps, core_call=exchange, sources=[x], pack=pack)


def sign_arrays(operation: str, dtype: "np.dtype[Any] | None", root: int = -1) -> SignedCall:
    """Return a v-variant as it travels.

    Args:
        dtype: None where receivers do not know it.
        root: -1: there is none.
    """
    name = "" if dtype is None else name_dtype(dtype)
    return sign_call(operation, name, None if root < 0 else root)


def scatter(arrays: Sequence[AnyArray] | None, root: int) -> CompositeCall:
    """Send each rank its array of the root's list; other ranks need not know the dtype."""
    name = "" if arrays is None else get_dtype_name(arrays[0].dtype)
    if len(name) > _NAME_BYTES:
        raise TypeError(f"{name} is a description of more than {_NAME_BYTES} bytes")

    def generate_steps(builder: StepBuilder) -> StepGenerator:
        rows = None if arrays is None else [_encode_array(array, name) for array in arrays]
        width = _ROW_LENGTH * 8 + _NAME_BYTES
        row = np.zeros(width, np.uint8)
        yield builder.scatter(row, rows, root)
        shape = _decode_shape(row[: _ROW_LENGTH * 8].view(np.int64))
        dtype = parse_dtype(row[_ROW_LENGTH * 8 :].tobytes().rstrip(b"\0").decode())
        found = np.empty(shape, dtype)
        nothing = np.empty(0, dtype)
        taken = [found if rank == root else nothing for rank in range(builder.size)]
        given = [nothing] * builder.size if arrays is None else list(arrays)
        yield builder.all_to_all(taken, given)
        return found

    def read(received: Received) -> AnyArray:
        if received[root] is not None:
            return array_messages.read_typed_array(received[root])
        assert arrays is not None, "the root has them"
        return copy_array(arrays[root])

    signed = sign_arrays("scatter_v", None, root)
    messages: Message | list[Message] = (
        () if arrays is None else [array_messages.pack_typed_array(array) for array in arrays]
    )
    exchange = Exchange(signed, messages, read, root)
    return CompositeCall(
        signed.call,
        generate_steps,
        has_blocks=True,
        core_call=exchange,
        sources=arrays or (),
        pack=lambda: exchange,
    )


def all_to_all(arrays: Sequence[AnyArray]) -> CompositeCall:
    """Send `arrays[j]` to rank j; return the arrays received, by rank; one dtype."""
    dtype = arrays[0].dtype

    def generate_steps(builder: StepBuilder) -> StepGenerator:
        rows = np.stack([_encode_shape(array) for array in arrays])
        heard = np.empty_like(rows)
        yield builder.all_to_all_single(heard, rows)
        found = [np.empty(_decode_shape(row), dtype) for row in heard]
        yield builder.all_to_all(found, list(arrays))
        return found

    def read(received: Received) -> list[AnyArray]:
        rank = next(at for at, one in enumerate(received) if one is None)
        return _read_all(received, arrays[rank])

    signed = sign_arrays("all_to_all_v", dtype)
    exchange = ArrayExchange(signed, list(arrays))
    return CompositeCall(
        signed.call,
        generate_steps,
        has_blocks=True,
        core_call=exchange,
        sources=arrays,
        pack=lambda: Exchange(signed, [array_messages.pack_array(one) for one in arrays], read),
    )


def reduce_scatter(
    arrays: Sequence[AnyArray], op: ReduceOp, into: AnyArray | None = None
) -> CompositeCall:
    """Return the reduction of all ranks' `arrays[rank]`, in the order of ranks.

    With `into` the result is written there at the very end, and returned in a list.
    """
    dtype = arrays[0].dtype

    def generate_steps(builder: StepBuilder) -> StepGenerator:
        mine = np.stack([_encode_shape(array) for array in arrays])
        rows = np.empty((builder.size, *mine.shape), np.int64)
        yield builder.all_gather_into_tensor(rows, mine)
        if (rows != rows[0]).any():
            found = [[_decode_shape(row) for row in one] for one in rows]
            raise _build_mismatch_error("reduce_scatter_v", found)
        parts = [np.empty(arrays[builder.rank].shape, dtype) for _ in range(builder.size)]
        yield builder.all_to_all(parts, list(arrays))
        return reduce([part.reshape(-1) for part in parts], builder.rank)

    def reduce(parts: Sequence[Array], rank: int) -> AnyArray | list[AnyArray]:
        found = np.empty(arrays[rank].shape, dtype)
        fold(op, parts, found.reshape(-1), len(parts))
        return store(found)

    def store(found: AnyArray) -> AnyArray | list[AnyArray]:
        if into is None:
            return found
        copy_into(into, found)
        return [into]

    shapes = tuple(array.shape for array in arrays)

    def read(received: Received) -> AnyArray | list[AnyArray]:
        rank = next(at for at, one in enumerate(received) if one is None)
        own = np.ascontiguousarray(arrays[rank]).reshape(-1), shapes
        blocks = [own if one is None else array_messages.read_block(one, dtype) for one in received]
        if any(found != shapes for _, found in blocks):
            raise _build_mismatch_error("reduce_scatter_v", [found for _, found in blocks])
        return reduce([block for block, _ in blocks], rank)

    signed = sign_call("reduce_scatter_v", name_dtype(dtype), reduce=op.name)

    def pack() -> Exchange:
        messages = [array_messages.pack_block(array, shapes) for array in arrays]
        return Exchange(signed, messages, read)

    core_call: CoreCall
    if op in OPS:
        core_call = RaggedReduction(sign_blocks(arrays, op), list(arrays), op, store)
    else:
        core_call = pack()
    return CompositeCall(
        signed.call,
        generate_steps,
        has_blocks=True,
        core_call=core_call,
        sources=arrays,
        pack=pack,
    )


def sign_blocks(arrays: Sequence[AnyArray], op: ReduceOp) -> SignedCall:
    """Return a `reduce_scatter_v` that the core carries out, as it travels."""
    shape = join_shapes([array.shape for array in arrays])
    return sign_call("reduce_scatter_v", name_dtype(arrays[0].dtype), reduce=op.name, shape=shape)


def _read_all(received: Received, own: AnyArray) -> list[AnyArray]:
    """Return the arrays that have come, of the dtype of this rank's, and a copy of that."""
    return [
        copy_array(own) if one is None else array_messages.read_array(one, own.dtype)
        for one in received
    ]


def _exchange_shapes(
    builder: StepBuilder, x: AnyArray
) -> Generator[Step, None, list[tuple[int, ...]]]:
    """Let all ranks know the shapes of all."""
    rows = np.empty((builder.size, _ROW_LENGTH), np.int64)
    yield builder.all_gather_into_tensor(rows, _encode_shape(x))
    return [_decode_shape(row) for row in rows]


def _encode_shape(x: AnyArray) -> Row:
    row = np.zeros(_ROW_LENGTH, np.int64)
    row[0] = x.ndim
    row[1 : 1 + x.ndim] = x.shape
    return row


def _decode_shape(row: Row) -> tuple[int, ...]:
    return tuple(row[1 : 1 + int(row[0])].tolist())


def _encode_array(x: AnyArray, dtype_name: str) -> NDArray[np.uint8]:
    name = np.zeros(_NAME_BYTES, np.uint8)
    text = dtype_name.encode()
    name[: len(text)] = np.frombuffer(text, np.uint8)
    return np.concatenate([_encode_shape(x).view(np.uint8), name])


def _build_mismatch_error(operation: str, shapes: Sequence[Sequence[Shape]]) -> CollectiveMismatch:
    table = {rank: f"{operation}(shapes {list(one)})" for rank, one in enumerate(shapes)}
    told = "; ".join(f"rank {rank}: {row}" for rank, row in table.items())
    return CollectiveMismatch(f"{operation}: the ranks bring blocks of other shapes: {told}", table)
