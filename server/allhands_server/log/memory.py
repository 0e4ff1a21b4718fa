"""Engine in memory: for tests, and the model of all others."""

from collections.abc import AsyncIterable, AsyncIterator, Sequence

from allhands_server.log.engine import Appended, AppendResult, Slot, SlotTrimmed, Snapshot, Taken
from allhands_server.log.slots import (
    LogEnd,
    check_next,
    check_snapshot,
    check_trim,
    iterate_slots,
)


class MemoryEngine:
    """A log that ends with the process."""

    def __init__(self) -> None:
        self._slots: dict[int, bytes] = {}
        self._first = 1
        self._end = LogEnd(0)
        self._snapshot: Snapshot | None = None

    async def append(self, index: int, data: bytes) -> AppendResult:
        """See `LogEngine.append`."""
        if index < self._first:
            raise SlotTrimmed(index)
        if (there := self._slots.get(index)) is not None:
            return Taken(there)
        check_next(index, self._end.index)
        self._slots[index] = bytes(data)
        self._end.move(index)
        return Appended()

    async def read(self, first: int, limit: int = 256) -> Sequence[Slot]:
        """See `LogEngine.read`."""
        start = max(first, self._first)
        stop = min(self._end.index + 1, start + limit)
        return [Slot(index, self._slots[index]) for index in range(start, stop)]

    async def get_bounds(self) -> tuple[int, int]:
        """See `LogEngine.get_bounds`."""
        return self._first, self._end.index

    def tail(self, first: int) -> AsyncIterator[Slot]:
        """See `LogEngine.tail`."""
        return iterate_slots(self.read, self._end, first)

    async def save_snapshot(self, index: int, chunks: AsyncIterable[bytes]) -> None:
        """See `LogEngine.save_snapshot`."""
        check_snapshot(index, self._first, self._end.index)
        self._snapshot = Snapshot(index, tuple([bytes(one) async for one in chunks]))
        if index > self._end.index:
            self._first = index + 1
            self._end.move(index)

    async def load_snapshot(self) -> Snapshot | None:
        """See `LogEngine.load_snapshot`."""
        return self._snapshot

    async def trim(self, below: int) -> None:
        """See `LogEngine.trim`."""
        check_trim(below, 0 if self._snapshot is None else self._snapshot.index)
        for index in range(self._first, min(below, self._end.index + 1)):
            del self._slots[index]
        self._first = max(self._first, min(below, self._end.index + 1))

    async def close(self) -> None:
        """See `LogEngine.close`."""
