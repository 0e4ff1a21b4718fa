"""The file pointer that all ranks share: a number in a file in memory, which has no name."""

import os
import struct

from allhands.mpi.files.storage import RangeLocks

_POSITION = "q"
_TOKEN_AT, _TOKEN_SIZE = 8, 16


class SharedPointer:
    """A position that all ranks on a host read and move, one at a time."""

    def __init__(self, descriptor: int, is_alone: bool) -> None:
        """`is_alone`: no other process has it."""
        self._descriptor = descriptor
        self._locks = RangeLocks(None if is_alone else descriptor)

    @classmethod
    def create(cls, is_alone: bool = False) -> "SharedPointer":
        """Return a new pointer, at 0, for others to open."""
        descriptor = os.memfd_create("allhands mpi file pointer", os.MFD_CLOEXEC)
        os.pwrite(descriptor, bytes(_TOKEN_AT) + os.urandom(_TOKEN_SIZE), 0)
        return cls(descriptor, is_alone)

    @property
    def address(self) -> tuple[int, int, bytes]:
        """What others open it by: process, descriptor, and bytes that tell it from all others."""
        return os.getpid(), self._descriptor, os.pread(self._descriptor, _TOKEN_SIZE, _TOKEN_AT)

    @classmethod
    def open(cls, address: tuple[int, int, bytes]) -> "SharedPointer":
        """Return the pointer that another process has made.

        Raises:
            OSError: there is no such process here, or it may not be asked.
        """
        pid, number, token = address
        # Opened, not inherited: locks are of the open file.
        descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            # In another container, that number may be another process.
            if os.pread(descriptor, _TOKEN_SIZE, _TOKEN_AT) != token:
                raise OSError(f"process {pid} is another one here")
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, is_alone=False)

    def take(self, count: int) -> int:
        """Move the pointer on; return where it was."""
        with self._locks.hold(0, _TOKEN_AT, exclusive=True):
            before = self._load()
            self._store(before + count)
        return before

    def move(self, position: int) -> None:
        """Set the pointer."""
        with self._locks.hold(0, _TOKEN_AT, exclusive=True):
            self._store(position)

    def get(self) -> int:
        """Return the pointer."""
        with self._locks.hold(0, _TOKEN_AT, exclusive=False):
            return self._load()

    def close(self) -> None:
        """Let it go."""
        os.close(self._descriptor)

    def _load(self) -> int:
        return int(struct.unpack(_POSITION, os.pread(self._descriptor, _TOKEN_AT, 0))[0])

    def _store(self, position: int) -> None:
        os.pwrite(self._descriptor, struct.pack(_POSITION, position), 0)
