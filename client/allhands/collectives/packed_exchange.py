"""Packed exchanges: the messages of a composite call, where they are small, in one step.

Every rank gives a block of one size: the sizes of its messages, then their bytes. Where these do
not fit it says so in its block, and so to all: then all ranks know all sizes, and a second step
moves the messages themselves.
"""

import struct
from collections.abc import Generator, Mapping
from functools import lru_cache
from typing import Protocol, TypeVar

import numpy as np

from allhands.collectives.core_call import Exchange, Message, Received
from allhands.data.blocks import allocate_bytes
from allhands.data.codec import align
from allhands.data.serializer import UInt8Array, count_bytes

Step_co = TypeVar("Step_co", covariant=True)

_SIZE_BYTES = 8
_TOO_LARGE = -1
"""In the place of the first size, less the bytes of all messages: they are not in the block."""
_ALL_BLOCKS_BYTES, _LEAST_BLOCK_BYTES = 8 << 10, 1 << 10
"""Of the blocks of all ranks that go to all of them, and of one of these."""
_ROOT_BLOCK_BYTES = 4 << 10
"""Of a block that the root alone gives."""
_MESSAGE_BYTES = 256
"""Of a message in a block with one for each rank."""
_MAX_RANKS, _MAX_RANKS_EACH = 128, 16
"""Of groups with packed exchanges, and of those with a message for each rank from each."""


class BlockMover(Protocol[Step_co]):
    """Builder of the steps that move blocks of bytes."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def gather_blocks(self, blocks: UInt8Array, block: UInt8Array) -> Step_co:
        """Return a step that gives every rank the blocks of all, end to end."""

    def broadcast_block(self, block: UInt8Array, root: int) -> Step_co:
        """Return a step that overwrites a block with that of the root."""

    def exchange_blocks(self, taken: list[UInt8Array], given: list[UInt8Array]) -> Step_co:
        """Return a step that sends each rank its block, and overwrites one with each rank's."""


def exchange_packed(
    builder: BlockMover[Step_co], exchange: Exchange, *, has_each: bool
) -> Generator[Step_co, None, Received | None]:
    """Yield the steps, and return what has come; None: there are no such steps in this group.

    With `has_each` there is a message for each rank, as all ranks know, and not one for all.

    Raises:
        ValueError: a peer announced messages of sizes that cannot be.
    """
    size, rank, root = builder.size, builder.rank, exchange.root
    is_from_root = _is_from_root(exchange)
    if size > (_MAX_RANKS_EACH if has_each and not is_from_root else _MAX_RANKS):
        return None
    nbytes = _count_block_bytes(size, has_each, is_from_root)
    columns, column = (size, rank) if has_each else (1, 0)
    block = bytearray(nbytes)
    if not is_from_root or rank == root:
        _pack(block, _list_messages(exchange))
    mine, places = np.frombuffer(block, np.uint8), {root: 0}
    if is_from_root:
        yield builder.broadcast_block(mine, root)
        blocks = mine
    else:
        blocks = np.empty(size * nbytes, np.uint8)
        yield builder.gather_blocks(blocks, mine)
        places = {peer: peer * nbytes for peer in range(size)}
    found, header = blocks.data, _make_header(columns)
    is_whole, sizes = True, {}
    for peer, start in places.items():
        row = header.unpack_from(found, start)
        if row[0] <= _TOO_LARGE:
            is_whole, row = False, (_TOO_LARGE - row[0] - sum(row[1:]), *row[1:])
        elif sum(row) > nbytes - header.size:
            raise ValueError(f"a peer announced messages of {list(row)} bytes in {nbytes}")
        if min(row) < 0 or max(row) > exchange.most:
            raise ValueError(
                f"a peer announced messages of {list(row)} bytes: 0 to {exchange.most} may be"
            )
        sizes[peer] = row
    if not is_whole:
        return (yield from _move_messages(builder, exchange, sizes, has_each=has_each))
    received: list[UInt8Array | None] = [mine[:0]] * size
    for peer, start in places.items():
        if exchange.to_root and rank != root:
            break
        first = start + header.size + sum(sizes[peer][:column])
        received[peer] = _copy(found[first : first + sizes[peer][column]])
    received[rank] = None
    return received


def _move_messages(
    builder: BlockMover[Step_co],
    exchange: Exchange,
    sizes: Mapping[int, tuple[int, ...]],
    *,
    has_each: bool,
) -> Generator[Step_co, None, Received]:
    """Yield the step that moves messages of known sizes, and return what has come."""
    size, rank, root = builder.size, builder.rank, exchange.root
    messages = _list_messages(exchange)
    received: list[UInt8Array | None]
    if _is_from_root(exchange) and not has_each:
        [nbytes] = sizes[root]
        whole = _join(messages[0], nbytes) if rank == root else allocate_bytes(nbytes)
        yield builder.broadcast_block(whole, root)
        received = [whole[:0]] * size
        received[root] = whole
    elif len(set(sizes.values())) == 1 and not has_each and not exchange.to_root:
        # Each at the alignment of what is in it.
        nbytes, stride = sizes[rank][0], align(sizes[rank][0])
        whole = allocate_bytes(size * stride)
        yield builder.gather_blocks(whole, _join(messages[0], stride))
        received = [whole[at : at + nbytes] for at in range(0, len(whole), stride)]
    else:

        def count(sender: int, receiver: int) -> int:
            if sender not in sizes or (exchange.to_root and receiver != root):
                return 0
            return sizes[sender][receiver if has_each else 0]

        nbytes_out = [count(rank, peer) for peer in range(size)]
        if has_each:
            given = [
                _join(messages[peer] if nbytes else (), nbytes)
                for peer, nbytes in enumerate(nbytes_out)
            ]
        else:
            joined = _join(messages[0], max(nbytes_out))
            given = [joined[:nbytes] for nbytes in nbytes_out]
        taken = [allocate_bytes(count(peer, rank)) for peer in range(size)]
        yield builder.exchange_blocks(taken, given)
        received = [*taken]
    received[rank] = None
    return received


def _is_from_root(exchange: Exchange) -> bool:
    return exchange.root >= 0 and not exchange.to_root


def _count_block_bytes(size: int, has_each: bool, is_from_root: bool) -> int:
    if has_each:
        return size * (_SIZE_BYTES + _MESSAGE_BYTES)
    if is_from_root:
        return _ROOT_BLOCK_BYTES
    return max(_ALL_BLOCKS_BYTES // size, _LEAST_BLOCK_BYTES)


def _list_messages(exchange: Exchange) -> list[Message]:
    """Return the messages that this rank gives, that for itself as well.

    In a fake group that stands for those of the others.
    """
    match exchange.messages:
        case dict(by_rank):
            return [by_rank[exchange.root]]
        case list(each):
            return each
        case message:
            return [message]


@lru_cache(maxsize=_MAX_RANKS)
def _make_header(columns: int) -> struct.Struct:
    """Return the layout of the sizes at the beginning of a block."""
    return struct.Struct(f"<{columns}q")


def _pack(block: bytearray, messages: list[Message]) -> None:
    """Fill a block with messages, or with word that they do not fit."""
    header = _make_header(len(messages))
    sizes = [count_bytes(one) for one in messages]
    end = header.size
    if end + sum(sizes) > len(block):
        header.pack_into(block, 0, _TOO_LARGE - sum(sizes), *sizes[1:])
        return
    header.pack_into(block, 0, *sizes)
    for message in messages:
        end = _fill(block, end, message)


def _join(message: Message, nbytes: int) -> UInt8Array:
    """Return a message in one array of so many bytes, with zeros behind it."""
    whole = allocate_bytes(nbytes)
    whole[_fill(whole.data, 0, message) :] = 0
    return whole


def _fill(place: bytearray | memoryview, end: int, message: Message) -> int:
    """Write a message behind what is there; return where it ends."""
    for part in message:
        # As bytes, for NumPy has dtypes that are none of a buffer.
        data = part if isinstance(part, bytes) else part.reshape(-1).view(np.uint8).data
        start, end = end, end + len(data)
        place[start:end] = data
    return end


def _copy(data: memoryview) -> UInt8Array:
    return np.frombuffer(bytearray(data), np.uint8)
