"""A log in memory that several daemons of a test share, each over a network of its own."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Sequence

from allhands_server.log.engine import Appended, AppendResult, Slot, Snapshot, Taken
from allhands_server.log.errors import LogUnavailable
from allhands_server.log.memory import MemoryEngine

_ROUND_TRIP = 0.01
_GIVE_UP = 1.0


class NetworkedEngine:
    """The engine of one daemon: slow, and away when a test says so."""

    def __init__(self, shared: MemoryEngine) -> None:
        self._shared = shared
        self.is_away = False
        self.loses_answers = False
        """Whether appends are carried out, and nobody hears of it."""
        self.answer_delay = 0.0
        """Seconds more until an append's answer comes."""
        self.is_closed = False

    async def append(self, index: int, data: bytes) -> AppendResult:
        await self._travel()
        result = await self._shared.append(index, data)
        if self.loses_answers:
            await asyncio.sleep(_GIVE_UP)
            raise LogUnavailable("the store does not answer")
        await asyncio.sleep(self.answer_delay)
        await self._travel()
        # Its own bytes are there after an attempt without an answer.
        return Appended() if result == Taken(data) else result

    async def read(self, first: int, limit: int = 256) -> Sequence[Slot]:
        await self._travel()
        return await self._shared.read(first, limit)

    async def get_bounds(self) -> tuple[int, int]:
        await self._travel()
        return await self._shared.get_bounds()

    async def tail(self, first: int) -> AsyncIterator[Slot]:
        following = first
        while True:
            for slot in await self.read(following):
                following = slot.index + 1
                yield slot

    async def save_snapshot(self, index: int, chunks: AsyncIterable[bytes]) -> None:
        await self._travel()
        await self._shared.save_snapshot(index, chunks)

    async def load_snapshot(self) -> Snapshot | None:
        await self._travel()
        return await self._shared.load_snapshot()

    async def trim(self, below: int) -> None:
        await self._travel()
        await self._shared.trim(below)

    async def close(self) -> None:
        self.is_closed = True

    async def _travel(self) -> None:
        if not self.is_away:
            await asyncio.sleep(_ROUND_TRIP)
        if self.is_away:
            await asyncio.sleep(_GIVE_UP)
            raise LogUnavailable("the store does not answer")
