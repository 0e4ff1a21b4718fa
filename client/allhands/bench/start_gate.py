"""Barrier in shared memory that starts the ranks of any system together.

With the systems' own barriers, ranks would begin a timed call at times that depend on the
measured system. The memory also holds the board for a test of barriers.
"""

import mmap
import os
import time
from pathlib import Path

_CACHE_LINE = 64
"""Bytes of a cache line: no two ranks write to the same one."""
_WAIT_SECONDS = 60.0
_LOOKS_PER_CLOCK = 1000
_NAP_SECONDS = 50e-6
"""Between looks of who leaves its core to others; nothing in the memory could wake it."""


class StartGate:
    """One rank's view of the gate; the file must be `nbytes(size)` of zeros."""

    def __init__(self, path: Path, rank: int, size: int) -> None:
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), self.count_bytes(size))
        self._words = memoryview(memory).cast("q")
        self._rank, self._size = rank, size
        self._generations = [0, 0]

    @staticmethod
    def count_bytes(size: int) -> int:
        return 3 * size * _CACHE_LINE

    def wait(self, participants: range, *, leaves_core: bool = False) -> None:
        """Return when all participants have come: all ranks, or always the same part of them.

        With `leaves_core` not at once, but what waits leaves its core to ranks that are to come:
        one that only yields is run again before they are, on some kernels for 0.6 ms.

        Raises:
            TimeoutError: somebody did not.
        """
        words, stride = self._words, _CACHE_LINE // 8
        # Those who are not in the part do not count its passings: it has lines of its own.
        part = int(len(participants) < self._size)
        self._generations[part] += 1
        passed = self._generations[part]
        first = part * self._size
        words[(first + self._rank) * stride] = passed
        looks = 0
        deadline = None
        for other in participants:
            place = (first + other) * stride
            while words[place] < passed:
                time.sleep(_NAP_SECONDS) if leaves_core else os.sched_yield()
                looks += 1
                if looks % _LOOKS_PER_CLOCK == 0:
                    now = time.monotonic()
                    deadline = deadline or now + _WAIT_SECONDS
                    if now > deadline:
                        raise TimeoutError(f"rank {other} did not come to the gate")

    def announce(self) -> int:
        """Announce this rank's next barrier on the board; return the barrier's number."""
        place = (2 * self._size + self._rank) * (_CACHE_LINE // 8)
        self._words[place] += 1
        return self._words[place]

    def find_missing(self, number: int) -> list[int]:
        """Return the ranks that have not announced barrier `number` yet."""
        words, stride, size = self._words, _CACHE_LINE // 8, self._size
        return [rank for rank in range(size) if words[(2 * size + rank) * stride] < number]
