"""Packed exchanges: the messages of a composite call, where they are small, in one step.

Every rank gives a block of one size: the sizes of its messages, then their bytes. A rank whose
messages do not fit says so in its block, and so to all: then the call goes on with the steps that
it has for messages of any size.
"""

import struct
from collections.abc import Generator, Sequence
from functools import lru_cache
from typing import Protocol, TypeVar

import numpy as np

from allhands.collectives.core_call import Exchange, Message, Received
from allhands.data.serializer import UInt8Array, count_bytes
from allhands_proto.quick_dataclass import dataclass

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


@dataclass(frozen=True, slots=True)
class LargeMessages:
    """Messages that are yet to be moved, as some are too large to be packed."""

    nbytes: dict[int, int]
    """Of all messages of a rank; of those that give any."""


class BlockMover(Protocol[Step_co]):
    """Builder of the steps that move blocks."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def gather_blocks(self, blocks: UInt8Array, block: UInt8Array) -> Step_co:
        """Return a step that gives every rank the blocks of all, end to end."""

    def broadcast_block(self, block: UInt8Array, root: int) -> Step_co:
        """Return a step that overwrites a block with that of the root."""


def exchange_packed(
    builder: BlockMover[Step_co], exchange: Exchange, *, has_each: bool
) -> Generator[Step_co, None, Received | LargeMessages | None]:
    """Yield the step, and return what has come; None: there is no such step in this group.

    Where some messages are too large none is taken, on all ranks. With `has_each` there is a
    message for each rank, as all ranks know, and not one for all.
    """
    size, rank, root = builder.size, builder.rank, exchange.root
    is_from_root = root >= 0 and not exchange.to_root
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
    received: list[UInt8Array | None] = [mine[:0]] * size
    nbytes_by_rank: dict[int, int] = {}
    is_whole = True
    for peer, start in places.items():
        sizes = header.unpack_from(found, start)
        _check_sizes(sizes, nbytes - header.size)
        is_whole &= sizes[0] > _TOO_LARGE
        nbytes_by_rank[peer] = _TOO_LARGE - sizes[0] if sizes[0] <= _TOO_LARGE else sum(sizes)
        if peer != rank and is_whole:
            first = start + header.size + sum(sizes[:column])
            received[peer] = np.frombuffer(
                bytearray(found[first : first + sizes[column]]), np.uint8
            )
    received[rank] = None
    return received if is_whole else LargeMessages(nbytes_by_rank)


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
    for part in (part for message in messages for part in message):
        # As bytes, for NumPy has dtypes that are none of a buffer.
        data = part if isinstance(part, bytes) else part.reshape(-1).view(np.uint8).data
        start, end = end, end + len(data)
        block[start:end] = data


def _check_sizes(sizes: Sequence[int], room: int) -> None:
    if sizes[0] > _TOO_LARGE and (min(sizes) < 0 or sum(sizes) > room):
        raise ValueError(f"a peer announced messages of {list(sizes)} bytes in {room}")
