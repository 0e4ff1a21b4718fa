"""Locks of a window at its target: shared or exclusive, granted in the order of asking. Pure."""

import collections
from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt


class LockQueue:
    """Who holds the lock of a window, and who waits for it."""

    def __init__(self) -> None:
        self._exclusive: int | None = None
        self._shared: collections.Counter[int] = collections.Counter()
        self._waiting: collections.deque[tuple[int, int, bool]] = collections.deque()

    def ask(self, rank: int, number: int, is_shared: bool) -> list[tuple[int, int]]:
        """Ask for the lock; return who has got it by that: ranks and the numbers they gave."""
        self._waiting.append((rank, number, is_shared))
        return self._grant()

    def release(self, rank: int) -> list[tuple[int, int]]:
        """Give the lock back; return who has got it by that.

        Raises:
            ValueError: the rank does not hold it.
        """
        if self._exclusive == rank:
            self._exclusive = None
        elif self._shared[rank]:
            self._shared[rank] -= 1
            if not self._shared[rank]:
                del self._shared[rank]
        else:
            raise ValueError(f"rank {rank} unlocks a window that it has not locked")
        return self._grant()

    def withdraw(self, rank: int) -> list[tuple[int, int]]:
        """Forget a rank that waits, or give back what it holds; return who has got the lock."""
        if self._exclusive == rank or self._shared[rank]:
            return self.release(rank)
        self._waiting = collections.deque(one for one in self._waiting if one[0] != rank)
        return self._grant()

    def list_holders(self) -> list[int]:
        """Return the ranks that hold the lock."""
        if self._exclusive is not None:
            return [self._exclusive]
        return sorted(+self._shared)

    def dump(self) -> list[int]:
        """Return the numbers from which `load` makes the same again."""
        shared, waiting = list(self._shared.elements()), self._waiting
        return [
            -1 if self._exclusive is None else self._exclusive,
            len(shared),
            len(waiting),
            *shared,
            *(int(number) for one in waiting for number in one),
        ]

    @classmethod
    def load(cls, numbers: Sequence[int]) -> Self:
        """Return the locks of numbers, behind which there may be others."""
        exclusive, shared, waiting = numbers[:3]
        self = cls()
        self._exclusive = None if exclusive < 0 else exclusive
        self._shared.update(numbers[3 : 3 + shared])
        at = 3 + shared
        for start in range(at, at + 3 * waiting, 3):
            rank, number, is_shared = numbers[start : start + 3]
            self._waiting.append((rank, number, bool(is_shared)))
        return self

    def _grant(self) -> list[tuple[int, int]]:
        granted = []
        while self._waiting:
            rank, number, is_shared = self._waiting[0]
            if self._exclusive is not None or (self._shared and not is_shared):
                break
            self._waiting.popleft()
            if is_shared:
                self._shared[rank] += 1
            else:
                self._exclusive = rank
            granted.append((rank, number))
        return granted


class LockTable:
    """The locks at all ranks of a window, in memory that these ranks share.

    A rank holds or waits for the lock of a target once at most. Who calls this has the target's
    memory alone.
    """

    def __init__(self, memory: npt.NDArray[np.uint8], ranks: int) -> None:
        """Use memory of `count_bytes(ranks)` bytes, which were 0 before its first use."""
        self._rows = memory.view(np.int64).reshape(ranks, _count_numbers(ranks))

    @staticmethod
    def count_bytes(ranks: int) -> int:
        """Return the size of the memory."""
        return ranks * _count_numbers(ranks) * 8

    def clear(self) -> None:
        """Make all locks free."""
        self._rows[:, 0] = -1

    def read(self, target: int) -> LockQueue:
        """Return the locks of a target."""
        return LockQueue.load(self._rows[target].tolist())

    def write(self, target: int, queue: LockQueue) -> None:
        """Store the locks of a target."""
        numbers = queue.dump()
        self._rows[target, : len(numbers)] = numbers


def _count_numbers(ranks: int) -> int:
    return 3 + 4 * ranks  # one that has it shared, three of each that waits
