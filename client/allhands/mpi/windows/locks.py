"""Locks of a window at its target: shared or exclusive, granted in the order of asking. Pure."""

import collections


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
