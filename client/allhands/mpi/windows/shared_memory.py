"""Memory that the ranks of a host share: made by one, opened by the others through its process.

It has no name in a file system: nothing is left when all processes have gone, however they end.
"""

import fcntl
import mmap
import os
import struct
import time
from typing import Any, Self

import numpy as np

from allhands.mpi.progress.frames import Bytes

_FLOCK = struct.Struct("hhqqi0q")  # struct flock: type, whence, start, length, process


class SharedMemory:
    """Memory of several processes, and mutexes of it; a mutex for each of its first bytes.

    The mutexes are locks of the kernel's on open files: it gives back those of a process that has
    ended.
    """

    def __init__(self, descriptor: int, nbytes: int) -> None:
        """Map an open file, which belongs to this object then.

        Raises:
            OSError, ValueError: it cannot be mapped; it is closed.
        """
        self.descriptor = descriptor
        try:
            mapped: Any = mmap.mmap(descriptor, max(nbytes, 1))
        except BaseException:
            self.close()
            raise
        self.data: Bytes = np.frombuffer(mapped, np.uint8, nbytes)

    @classmethod
    def make(cls, nbytes: int) -> Self:
        """Return new memory, filled with 0."""
        descriptor = os.memfd_create("allhands mpi window", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, max(nbytes, 1))
        return cls(descriptor, nbytes)

    @classmethod
    def open(cls, pid: int, descriptor: int, nbytes: int) -> Self:
        """Return memory that another process on this host has made.

        Raises:
            OSError: there is no such process here, or it may not be asked.
        """
        own = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        if os.fstat(own).st_size < nbytes:
            os.close(own)
            raise OSError(f"the memory of process {pid} is shorter than {nbytes} bytes")
        return cls(own, nbytes)

    def acquire(self, at: int, seconds: float) -> None:
        """Take a mutex, which is held for microseconds: no other process has it then.

        Threads of this process do not exclude one another by it.

        Raises:
            TimeoutError: another process has held it for so long.
        """
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)
        deadline = 0.0
        while True:
            try:
                fcntl.fcntl(self.descriptor, fcntl.F_OFD_SETLK, wanted)
            except BlockingIOError:
                now = time.monotonic()
                deadline = deadline or now + seconds
                if now > deadline:
                    raise TimeoutError(
                        f"another process has changed shared memory for {seconds:g} s: it is "
                        "stopped, or was starved"
                    ) from None
                os.sched_yield()
            else:
                return

    def release(self, at: int) -> None:
        """Give a mutex back."""
        given = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, at, 1, 0)
        fcntl.fcntl(self.descriptor, fcntl.F_OFD_SETLK, given)

    def close(self) -> None:
        """Close the file; the memory stays until nobody uses it. Idempotent."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
