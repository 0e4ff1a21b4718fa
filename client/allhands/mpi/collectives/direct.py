"""Blocking collectives by direct calls: at once, on the caller's thread, without a plan.

`comm` and `vectors` are what `Numbering` has as `direct_calls` and `vector_calls`. Each function
returns True when the call has ended well. False: nothing has happened, as something
is under way or an argument is to be read with care; then the plan of the same call tells what is
wrong, if anything is. Ranks need not go the same way: plans make the same calls of allhands.
"""

from typing import Any, Literal, Protocol

import numpy as np

from allhands.mpi import errors
from allhands.mpi.buffers.plain_specs import copy_spec, list_numbers, view_blocks, view_spec
from allhands.mpi.constants import ERR_TRUNCATE
from allhands.mpi.memory.special import is_in_place
from allhands.mpi.operations.op import Op
from allhands.mpi.progress.frames import Bytes


class DirectCall(Protocol):
    """A function of this module."""

    def __call__(self, calls: Any, rank: int, size: int, /, *args: Any) -> bool: ...


def barrier(comm: Any, rank: int, size: int) -> bool:
    return bool(comm.barrier(None, None))


def bcast(comm: Any, rank: int, size: int, buf: Any, root: int) -> bool:
    return (
        _is_rank(root, size)
        and (data := view_spec(buf, True, True, 1)) is not None
        and comm.broadcast(data, root, None, None)
    )


def gather(comm: Any, rank: int, size: int, sendbuf: Any, recvbuf: Any, root: int) -> bool:
    if not _is_rank(root, size):
        return False
    parts: list[Bytes] | None = None
    if rank == root:
        if (data := view_spec(recvbuf, True, True, size)) is None:
            return False
        parts = cut(data, size)
    own = (
        parts[rank].copy()
        if parts is not None and is_in_place(sendbuf)
        else view_spec(sendbuf, False, True, 1)
    )
    return own is not None and comm.gather(own, parts, root, None, None)


def scatter(comm: Any, rank: int, size: int, sendbuf: Any, recvbuf: Any, root: int) -> bool:
    if not _is_rank(root, size):
        return False
    parts: list[Bytes] | None = None
    if rank == root:
        if (data := view_spec(sendbuf, False, True, size)) is None:
            return False
        parts = cut(data, size)
    own = (
        np.empty_like(parts[rank])
        if parts is not None and is_in_place(recvbuf)
        else view_spec(recvbuf, True, True, 1)
    )
    return own is not None and comm.scatter(own, parts, root, None, None)


def allgather(comm: Any, rank: int, size: int, sendbuf: Any, recvbuf: Any) -> bool:
    if (data := view_spec(recvbuf, True, True, size)) is None:
        return False
    own = (
        cut(data, size)[rank].copy() if is_in_place(sendbuf) else view_spec(sendbuf, False, True, 1)
    )
    return own is not None and comm.all_gather_into_tensor(data, own, None, None)


def alltoall(comm: Any, rank: int, size: int, sendbuf: Any, recvbuf: Any) -> bool:
    if (data := view_spec(recvbuf, True, True, size)) is None:
        return False
    own = data.copy() if is_in_place(sendbuf) else view_spec(sendbuf, False, True, size)
    return own is not None and comm.all_to_all_single(data, own, None, None)


def reduce(comm: Any, rank: int, size: int, sendbuf: Any, recvbuf: Any, op: Op, root: int) -> bool:
    if not _is_rank(root, size):
        return False
    if rank == root:
        return (
            (data := view_spec(recvbuf, True, False, 1)) is not None
            and (native := op.native(data.dtype)) is not None
            and (is_in_place(sendbuf) or copy_spec(sendbuf, data))
            and comm.reduce(data, root, native, None, None)
        )
    return (
        (data := view_spec(sendbuf, False, False, 1)) is not None
        and (native := op.native(data.dtype)) is not None
        and comm.reduce(data, root, native, None, None)
    )


def allreduce(comm: Any, rank: int, size: int, sendbuf: Any, recvbuf: Any, op: Op) -> bool:
    return (
        (data := view_spec(recvbuf, True, False, 1)) is not None
        and (native := op.native(data.dtype)) is not None
        and (is_in_place(sendbuf) or copy_spec(sendbuf, data))
        and comm.all_reduce(data, native, None, None)
    )


def reduce_scatter_block(
    comm: Any, rank: int, size: int, sendbuf: Any, recvbuf: Any, op: Op
) -> bool:
    return (
        not is_in_place(sendbuf)
        and (data := view_spec(recvbuf, True, False, 1)) is not None
        and (native := op.native(data.dtype)) is not None
        and (brought := view_spec(sendbuf, False, False, size)) is not None
        and comm.reduce_scatter_tensor(data, brought, native, None, None)
    )


def scan(comm: Any, rank: int, size: int, sendbuf: Any, recvbuf: Any, op: Op) -> bool:
    return (
        (data := view_spec(recvbuf, True, False, 1)) is not None
        and (native := op.native(data.dtype)) is not None
        and (is_in_place(sendbuf) or copy_spec(sendbuf, data))
        and comm.scan(data, native, None, None)
    )


def exscan(comm: Any, rank: int, size: int, sendbuf: Any, recvbuf: Any, op: Op) -> bool:
    if (data := view_spec(recvbuf, True, False, 1)) is None:
        return False
    if rank == 0:  # its result stays as it is, as MPI has it
        data = data.copy()
    return (
        (native := op.native(data.dtype)) is not None
        and (is_in_place(sendbuf) or copy_spec(sendbuf, data))
        and comm.exscan(data, native, None, None)
    )


# ---------------------------------------------------------------- blocks of sizes of their own


def allgatherv(vectors: Any, rank: int, size: int, sendbuf: Any, recvbuf: Any) -> bool:
    if (blocks := view_blocks(recvbuf, True, size)) is None:
        return False
    own = blocks[rank] if is_in_place(sendbuf) else view_spec(sendbuf, False, True, 1)
    return own is not None and _store(vectors.all_gather_v(own), blocks)


def gatherv(vectors: Any, rank: int, size: int, sendbuf: Any, recvbuf: Any, root: int) -> bool:
    if not _is_rank(root, size):
        return False
    blocks: list[Bytes] | None = None
    if rank == root and (blocks := view_blocks(recvbuf, True, size)) is None:
        return False
    own = (
        blocks[rank]
        if blocks is not None and is_in_place(sendbuf)
        else view_spec(sendbuf, False, True, 1)
    )
    return own is not None and _store(vectors.gather_v(own, root), blocks)


def alltoallv(vectors: Any, rank: int, size: int, sendbuf: Any, recvbuf: Any) -> bool:
    if (blocks := view_blocks(recvbuf, True, size)) is None:
        return False
    parts = blocks if is_in_place(sendbuf) else view_blocks(sendbuf, False, size)
    return parts is not None and _store(vectors.all_to_all_v(parts), blocks)


def scatterv(vectors: Any, rank: int, size: int, sendbuf: Any, recvbuf: Any, root: int) -> bool:
    if not _is_rank(root, size):
        return False
    blocks: list[Bytes] | None = None
    if rank == root and (blocks := view_blocks(sendbuf, False, size)) is None:
        return False
    is_kept = blocks is not None and is_in_place(recvbuf)
    room = None if is_kept else view_spec(recvbuf, True, True, 1)
    if room is None and not is_kept:
        return False
    if (came := vectors.scatter_v(blocks, root)) is False:
        return False
    if room is not None:
        check_room(root, came.size, room.size)
        room[: came.size] = came
    return True


def reduce_scatter(
    vectors: Any, rank: int, size: int, sendbuf: Any, recvbuf: Any, recvcounts: Any, op: Op
) -> bool:
    if is_in_place(sendbuf) or (counts := list_numbers(recvcounts, size)) is None:
        return False
    data, brought = view_spec(recvbuf, True, False, 1), view_spec(sendbuf, False, False, 1)
    if data is None or brought is None or data.dtype != brought.dtype:
        return False
    if min(counts) < 0 or data.size != counts[rank] or brought.size != sum(counts):
        return False
    if (native := op.native(data.dtype)) is None:
        return False
    numbers, parts, start = brought.reshape(-1), [], 0
    for count in counts:
        parts.append(numbers[start : start + count])
        start += count
    if (made := vectors.reduce_scatter_v(parts, native)) is False:
        return False
    data.reshape(-1)[:] = made
    return True


def _store(came: "list[Bytes] | Literal[False] | None", blocks: list[Bytes] | None) -> bool:
    """Store what came from each rank, unless nothing has happened."""
    if came is False:
        return False
    for rank, (data, block) in enumerate(zip(came or (), blocks or (), strict=True)):
        check_room(rank, data.size, block.size)
        block[: data.size] = data
    return True


def check_room(rank: int, nbytes: int, room: int) -> None:
    """Raise if a rank has sent more than there is room for."""
    if nbytes > room:
        raise errors.make_error(
            ERR_TRUNCATE, f"rank {rank} sent {nbytes} bytes, and there is room for {room}"
        )


def cut(data: Bytes, count: int) -> list[Bytes]:
    """Return equal parts of memory."""
    size = data.size // count
    return [data[at * size : (at + 1) * size] for at in range(count)]


def _is_rank(root: object, size: int) -> bool:
    return root.__class__ is int and 0 <= root < size
