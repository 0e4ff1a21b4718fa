"""Reading and writing of runs of a file, and the pointer that ranks on one host share."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from allhands.mpi import constants, errors
from allhands.mpi.datatypes.layouts import Offsets
from allhands.mpi.progress.frames import Bytes
from allhands.mpi.windows.shared_memory import make_memory, open_memory

_CLASSES = {
    errno.ENOENT: constants.ERR_NO_SUCH_FILE,
    errno.EEXIST: constants.ERR_FILE_EXISTS,
    errno.EACCES: constants.ERR_ACCESS,
    errno.EPERM: constants.ERR_ACCESS,
    errno.EROFS: constants.ERR_READ_ONLY,
    errno.ENOSPC: constants.ERR_NO_SPACE,
    errno.EDQUOT: constants.ERR_QUOTA,
    errno.EISDIR: constants.ERR_BAD_FILE,
    errno.ENAMETOOLONG: constants.ERR_BAD_FILE,
    errno.EBUSY: constants.ERR_FILE_IN_USE,
}


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Raise the errors of MPI for those of the system in a block."""
    try:
        yield
    except OSError as error:
        code = _CLASSES.get(error.errno or 0, constants.ERR_IO)
        raise errors.make_error(code, f"{what}: {error.strerror or error}") from error


def read_runs(descriptor: int, offsets: Offsets, lengths: Offsets) -> Bytes:
    """Return the data of runs, up to the end of the file."""
    data: Any = np.empty(int(lengths.sum()) if lengths.size else 0, np.uint8)
    at = 0
    for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
        done = 0
        while done < length:
            count = os.preadv(
                descriptor, [memoryview(data)[at + done : at + length]], offset + done
            )
            if not count:
                short: Bytes = data[: at + done]
                return short
            done += count
        at += length
    whole: Bytes = data
    return whole


def write_runs(descriptor: int, offsets: Offsets, lengths: Offsets, data: Bytes) -> None:
    """Write data to runs."""
    whole: Any = np.ascontiguousarray(data)
    memory = memoryview(whole)
    at = 0
    for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
        done = 0
        while done < length:
            done += os.pwrite(descriptor, memory[at + done : at + length], offset + done)
        at += length


@contextmanager
def lock_range(descriptor: int, start: int, stop: int, exclusive: bool) -> Iterator[None]:
    """Keep other processes from bytes of a file in a block."""
    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    fcntl.lockf(descriptor, kind, max(stop - start, 1), start)
    try:
        yield
    finally:
        fcntl.lockf(descriptor, fcntl.LOCK_UN, max(stop - start, 1), start)


class SharedPointer:
    """A position in memory of one process, which others on its host map."""

    def __init__(self, memory: Bytes, descriptor: int) -> None:
        self._value = memory.view(np.int64)
        self._descriptor = descriptor

    @classmethod
    def open(cls, comm: Any) -> "SharedPointer":
        """Return the pointer of the ranks of a communicator; a collective call.

        Raises:
            NotImplementedError: they are on several hosts.
        """
        if len(set(comm._gather_hosts())) > 1:
            raise NotImplementedError(
                "ranks on several hosts share no file pointer: use explicit offsets (Read_at, "
                "Write_at), or a position of each rank (Seek, Read, Write)"
            )
        descriptor = None
        if comm.Get_rank() == 0:
            memory, descriptor = make_memory(8)
        pid, number = comm._tell((os.getpid(), descriptor), 0)
        if comm.Get_rank():
            memory = open_memory(pid, number, 8)
        own = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        comm.Barrier()
        if descriptor is not None:
            os.close(descriptor)
        return cls(memory, own)

    def take(self, count: int) -> int:
        """Move the pointer on; return where it was."""
        with lock_range(self._descriptor, 0, 8, exclusive=True):
            before = int(self._value[0])
            self._value[0] = before + count
        return before

    def move(self, position: int) -> None:
        """Set the pointer."""
        with lock_range(self._descriptor, 0, 8, exclusive=True):
            self._value[0] = position

    def get(self) -> int:
        """Return the pointer."""
        return int(self._value[0])

    def close(self) -> None:
        """Let the memory go."""
        os.close(self._descriptor)
