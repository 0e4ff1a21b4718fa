"""Heap: the part of a process's segment from which arrays are given to users."""

import bisect
import os
import threading
import weakref
from collections import deque
from types import ModuleType
from typing import TYPE_CHECKING

from allhands.errors import ForkedProcess
from allhands.shm.areas import PAGE

if TYPE_CHECKING:
    from allhands._native import Block, Segment


class Heap:
    """A first-fit allocator of whole pages; unreferenced blocks are freed."""

    def __init__(self, core: ModuleType, segment: "Segment", offset: int, nbytes: int) -> None:
        self._core = core
        self._segment = segment
        self._lock = threading.Lock()
        self._free: list[tuple[int, int]] = [(offset, nbytes)]
        """(offset, bytes) of what is free, in order, never two that touch."""
        self._reclaimed: deque[tuple[int, int]] = deque()
        """Blocks that were collected: that may happen in the middle of anything."""
        self._pid = os.getpid()

    def allocate(self, nbytes: int) -> "Block":
        """Return zeroed memory, from a page's beginning.

        Raises:
            MemoryError: so much is not free in one piece.
            ForkedProcess: its parent would give out the same.
        """
        if os.getpid() != self._pid:
            raise ForkedProcess("this shared memory")
        wanted = max(-(-nbytes // PAGE), 1) * PAGE
        with self._lock:
            while self._reclaimed:
                self._insert(*self._reclaimed.popleft())
            for at, (offset, free) in enumerate(self._free):
                if free >= wanted:
                    self._free[at] = (offset + wanted, free - wanted)
                    if free == wanted:
                        del self._free[at]
                    break
            else:
                raise MemoryError(f"no {nbytes} bytes of shared memory are free in one piece")
        block: Block = self._core.Block(self._segment, offset, wanted)
        weakref.finalize(block, self._reclaim, offset, wanted).atexit = False
        return block

    def _reclaim(self, offset: int, nbytes: int) -> None:
        if os.getpid() != self._pid:
            return  # what a forked child lets go of is still its parent's
        if self._segment.clear(offset, nbytes):
            self._reclaimed.append((offset, nbytes))

    def _insert(self, offset: int, nbytes: int) -> None:
        at = bisect.bisect(self._free, (offset, nbytes))
        if at < len(self._free) and self._free[at][0] == offset + nbytes:
            nbytes += self._free.pop(at)[1]
        if at > 0 and sum(self._free[at - 1]) == offset:
            self._free[at - 1] = (self._free[at - 1][0], self._free[at - 1][1] + nbytes)
        else:
            self._free.insert(at, (offset, nbytes))
