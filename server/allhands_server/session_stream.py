"""Stream of a session: notifications to one member, in order."""

import asyncio
from collections.abc import AsyncIterator

from allhands_server.machine.effects import EndSession, Notification
from allhands_server.machine.refusals import Refused


class SessionStream:
    """Notifications to one member, in order, until the session's end."""

    def __init__(self, number: int, peer: str = "") -> None:
        self.number = number
        self.peer = peer
        """The other end of its connection, as gRPC writes it."""
        self._queue: asyncio.Queue[Notification | EndSession] = asyncio.Queue()

    def put(self, item: Notification | EndSession) -> None:
        self._queue.put_nowait(item)

    async def iterate_batches(self) -> AsyncIterator[list[Notification]]:
        """Yield all pending notifications at once, as soon as any is pending.

        Waits as long as the session lives.

        Raises:
            Refused: the session ends for a reason that the member should hear.
        """
        end: EndSession | None = None
        while end is None:
            items = [await self._queue.get()]
            while not self._queue.empty():
                items.append(self._queue.get_nowait())
            batch = []
            for item in items:
                if isinstance(item, EndSession):
                    end = item
                    break
                batch.append(item)
            if batch:
                yield batch
        if end.refusal is not None:
            raise Refused(end.refusal.status, end.refusal.text, end.refusal.leader)
