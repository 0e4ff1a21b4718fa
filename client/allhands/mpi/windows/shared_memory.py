"""Memory that the ranks of a host share: made by one, opened by the others through its process.

It has no name in a file system: nothing is left when all processes have gone, however they end.
"""

import mmap
import os
from typing import Any

import numpy as np

from allhands.mpi.progress.frames import Bytes


def make_memory(nbytes: int) -> tuple[Bytes, int]:
    """Return new memory, filled with 0, and the descriptor by which others open it."""
    descriptor = os.memfd_create("allhands mpi window", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, max(nbytes, 1))
    return _map(descriptor, nbytes), descriptor


def open_memory(pid: int, descriptor: int, nbytes: int) -> Bytes:
    """Return memory that another process on this host has made.

    Raises:
        OSError: there is no such process here, or it may not be asked.
    """
    own = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR)
    try:
        if os.fstat(own).st_size < nbytes:
            raise OSError(f"the memory of process {pid} is shorter than {nbytes} bytes")
        return _map(own, nbytes)
    finally:
        os.close(own)


def _map(descriptor: int, nbytes: int) -> Bytes:
    mapped: Any = mmap.mmap(descriptor, max(nbytes, 1))
    return np.frombuffer(mapped, np.uint8, nbytes)
