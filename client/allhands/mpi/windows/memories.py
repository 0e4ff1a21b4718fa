"""Memory of a window: seen by this process, or another one's, reached through the kernel."""

import os
from collections.abc import Callable
from typing import Protocol

import numpy as np

from allhands.mpi.datatypes import copying
from allhands.mpi.progress.frames import Bytes
from allhands.mpi.windows import places
from allhands.mpi.windows.places import Place


class Memory(Protocol):
    """Memory with places in it."""

    def read(self, place: Place, start: int) -> Bytes:
        """Return the data at a place, packed; perhaps a view.

        Raises:
            ValueError: it lies not within the memory.
        """

    def write(self, place: Place, start: int, data: Bytes) -> None:
        """Store packed data at a place.

        Raises:
            ValueError: it lies not within the memory, or the data has another size.
        """


class MappedMemory:
    """Memory that this process sees."""

    def __init__(self, data: Bytes) -> None:
        self.data = data

    def read(self, place: Place, start: int) -> Bytes:
        return places.read(place, self.data, start)

    def write(self, place: Place, start: int, data: Bytes) -> None:
        places.write(place, self.data, start, data)


class RemoteMemory:
    """Memory of another process.

    Its file of memory is opened once: were its number another process's later, reading and writing
    would fail.
    """

    def __init__(self, descriptor: int, address: int, nbytes: int) -> None:
        """Use an open /proc/PID/mem, which is not closed here."""
        self._descriptor = descriptor
        self._address = address
        self._nbytes = nbytes

    def read(self, place: Place, start: int) -> Bytes:
        """Return a copy of the data at a place, packed.

        Raises:
            ProcessLookupError: the process has ended.
        """
        packed: Bytes = np.empty(place.nbytes, np.uint8)
        self._move(os.preadv, place, start, packed)
        return packed

    def write(self, place: Place, start: int, data: Bytes) -> None:
        """Store packed data at a place.

        Raises:
            ProcessLookupError: the process has ended.
        """
        if data.size != place.nbytes:
            raise ValueError(f"{data.size} bytes are brought for a place of {place.nbytes}")
        self._move(os.pwritev, place, start, data)

    def _move(self, move: Callable[..., int], place: Place, start: int, packed: Bytes) -> None:
        if not place.nbytes:
            return
        offsets, lengths = copying.list_runs(place.layout, start, place.count, self._nbytes)
        at = 0
        for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
            address, end = self._address + offset, at + length
            while at < end:  # a call moves 2 GiB at most
                moved = move(self._descriptor, [packed[at:end]], address)
                if not moved:
                    raise ProcessLookupError("the process of the memory has ended")
                at, address = at + moved, address + moved
