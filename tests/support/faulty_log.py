"""An engine of the coordinator's log that fails when it is told to."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from allhands_server.log.engine import AppendResult, Slot
from allhands_server.log.errors import LogFull, LogUnwritable
from allhands_server.log.memory import MemoryEngine


class FaultyEngine(MemoryEngine):
    """An engine in memory with faults, and a gate that holds appends back."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False
        """Appends find no room."""
        self.loses_next = self.hides_next = False
        """The next append fails: without an effect; with one that nobody hears of."""
        self.gate = asyncio.Event()
        """Appends wait until it is set."""
        self.gate.set()
        self.appends = 0
        """Begun so far."""
        self.has_begun = asyncio.Event()
        """Set by each append as it begins."""
        self.is_closed = False

    async def append(self, index: int, data: bytes) -> AppendResult:
        self.appends += 1
        self.has_begun.set()
        await self.gate.wait()
        if self.is_full:
            raise LogFull("the disk is full")
        if self.loses_next or self.hides_next:
            if self.hides_next:
                await super().append(index, data)
            raise LogUnwritable("input/output error")
        return await super().append(index, data)

    async def close(self) -> None:
        self.is_closed = True

    # ------------------------------------------------------------ damage

    def lose_last(self, count: int) -> None:
        """Forget the last slots, which were acknowledged."""
        for index in range(self._end.index - count + 1, self._end.index + 1):
            del self._slots[index]
        self._end.index -= count

    def replace(self, index: int, data: bytes) -> None:
        """Put other bytes in a slot."""
        self._slots[index] = data

    async def list_slots(self) -> Sequence[Slot]:
        return await self.read(1, 1 << 30)


async def iterate_chunks(*chunks: bytes) -> AsyncIterator[bytes]:
    """Iterate over the chunks of a snapshot, as an engine takes these."""
    for chunk in chunks:
        await asyncio.sleep(0)
        yield chunk
