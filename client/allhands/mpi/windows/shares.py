"""Memory of a window that all its ranks reach: made by the first of them, or their own."""

import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from allhands.mpi.progress.frames import Bytes
from allhands.mpi.windows.direct_exchange import Share, Shares
from allhands.mpi.windows.exchange import describe_address
from allhands.mpi.windows.locks import LockTable
from allhands.mpi.windows.memories import MappedMemory, RemoteMemory
from allhands.mpi.windows.shared_memory import SharedMemory

LINE_BYTES = 64
"""Memory of ranks begins at multiples of this where it need not be without gaps."""
_NONCE_BYTES = 16


class Ranks(Protocol):
    """A communicator, as this needs it."""

    _rank: int

    @property
    def _ranks(self) -> Sequence[int]:
        """The ranks in the world."""

    def _share(self, value: Any) -> list[Any]:
        """Return the value of each rank."""

    def _tell(self, value: Any, root: int) -> Any:
        """Return the value of the root."""

    def _gather_hosts(self) -> list[str]:
        """Return the host of each rank."""


def open_shares(comm: Ranks, size: int, disp_unit: int, alignment: int) -> Shares | None:
    """Make memory of so many bytes for this rank, filled with 0; a collective call.

    Returns:
        None, on all ranks: they are not on one host, or may not open each other's memory.
    """
    if len(set(comm._gather_hosts())) > 1:
        return None
    ranks = len(comm._ranks)
    wanted = comm._share([size, disp_unit])
    head = _align(_NONCE_BYTES + LockTable.count_bytes(ranks), LINE_BYTES)
    starts = [head]
    for nbytes, _ in wanted:
        starts.append(_align(starts[-1] + nbytes, alignment))
    memory, told = _make(starts[-1]) if comm._rank == 0 else (None, None)
    told = comm._tell(told, 0)
    if comm._rank and told is not None:
        memory = _open(told, starts[-1])
    is_open = comm._share(memory is not None)
    if memory is None or not all(is_open):
        if memory is not None:
            memory.close()
        return None
    data = memory.data
    locks = LockTable(data[_NONCE_BYTES:][: LockTable.count_bytes(ranks)], ranks)
    if comm._rank == 0:
        locks.clear()
    shares = {
        world: Share(
            place, MappedMemory(data[starts[place] :][: wanted[place][0]]), wanted[place][1]
        )
        for place, world in enumerate(comm._ranks)
    }
    return Shares(memory, locks, shares)


def reach_memory(comm: Ranks, own: Bytes, disp_unit: int, files: dict[int, int]) -> Shares | None:
    """Let all ranks reach memory that they have; a collective call.

    Args:
        own: this rank's memory, which is not moved while the shares are used.
        files: open files of the memory of processes, by their numbers; others are added.

    Returns:
        None, on all ranks: they are not on one host, or may not reach each other's memory.
    """
    shares = open_shares(comm, 0, disp_unit, LINE_BYTES)
    if shares is None:
        return None
    nonce = np.frombuffer(secrets.token_bytes(_NONCE_BYTES), np.uint8)
    told = comm._share(
        [os.getpid(), describe_address(nonce), nonce.tobytes(), describe_address(own), own.size]
    )
    found: dict[int, Share] = {}
    for place, (world, one) in enumerate(zip(comm._ranks, told, strict=True)):
        memory = MappedMemory(own) if place == comm._rank else _reach(one, files)
        if memory is None:
            break
        found[world] = replace(shares.by_rank[world], memory=memory)
    if not all(comm._share(len(found) == len(told))):
        shares.table.close()
        return None
    return replace(shares, by_rank=found)


def _reach(told: Any, files: dict[int, int]) -> RemoteMemory | None:
    """Return the memory of another process; None: this process may not reach it."""
    pid, nonce_address, nonce, address, nbytes = told
    try:
        if pid not in files:
            files[pid] = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        if os.pread(files[pid], len(nonce), nonce_address) != nonce:
            return None
    except OSError:
        return None
    return RemoteMemory(files[pid], address, nbytes)


def _make(nbytes: int) -> tuple[SharedMemory | None, list[Any] | None]:
    """Return new memory, and what tells others where it is; None: there is not so much."""
    try:
        memory = SharedMemory.make(nbytes)
    except (OSError, ValueError, OverflowError):
        return None, None
    nonce = secrets.token_bytes(_NONCE_BYTES)
    memory.data[:_NONCE_BYTES] = np.frombuffer(nonce, np.uint8)
    return memory, [os.getpid(), memory.descriptor, nonce]


def _open(told: Any, nbytes: int) -> SharedMemory | None:
    """Return the memory of the first rank; None: this process sees another one there, or none."""
    pid, descriptor, nonce = told
    try:
        memory = SharedMemory.open(pid, descriptor, nbytes)
    except (OSError, ValueError):  # ValueError: a file that cannot be mapped
        return None
    found: Bytes = memory.data[:_NONCE_BYTES]
    if found.tobytes() != nonce:
        memory.close()
        return None
    return memory


def _align(number: int, to: int) -> int:
    return -(-number // to) * to
