"""Watches of keys for asyncio: events in order, each once, also over restarts."""

import asyncio
import time
from collections import deque
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from allhands.coordinator.kv import requests
from allhands.coordinator.kv.records import KeyEvent, WatchPlace
from allhands.coordinator.kv.requests import AnyKvRequest, WatchedKeys
from allhands.coordinator.kv.watching import POLL_SECONDS, WatchRetries
from allhands.deadlines import Timeout
from allhands.errors import CoordinatorUnavailable, StoreTimeout

T = TypeVar("T")


class Requester(Protocol):
    """A client that makes requests about the keys of a job."""

    @property
    def job_name(self) -> str: ...

    async def request(self, asked: AnyKvRequest[T], timeout: Timeout | None = None) -> T: ...


class AsyncWatch:
    """Asynchronous iterator over the events of keys: none missed, none twice, in order.

    Endless, until cancelled or closed. A connection that breaks is made again, and the watch goes
    on where it was; so does a new watch from `next_revision`, where no event of that revision is
    known. With `async with`, events from the beginning of the block on are seen.

    Iteration raises:
        Compacted: events from this place on are not all known any more: look at the keys, and watch
            on behind the revision of that look.
        Refused: the coordinator has other keys than those watched before.
        CoordinatorUnavailable: the coordinator was away for longer than the client's timeout.
    """

    def __init__(self, client: Requester, keys: WatchedKeys, place: WatchPlace) -> None:
        self._client = client
        self._keys = keys
        self._place = place
        self._events: deque[KeyEvent] = deque()
        self._is_closed = False
        self._polling: asyncio.Future[Any] | None = None

    @property
    def next_revision(self) -> int:
        """Revision to watch from in order to go on; 0: not begun."""
        return self._events[0].revision if self._events else self._place.revision

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration, also one that waits. Idempotent."""
        self._is_closed = True
        self._events.clear()
        if self._polling is not None:
            self._polling.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> KeyEvent:
        while not self._events:
            if self._is_closed:
                raise StopAsyncIteration
            await self._begin()
            await self._poll()
        return self._events.popleft()

    async def _begin(self) -> None:
        """Settle the revision that the watch begins with."""
        if not self._place.revision:
            asked = requests.make_watch(self._client.job_name, self._keys, self._place, wait=False)
            self._place = (await self._client.request(asked)).place

    async def _poll(self) -> None:
        """Wait for the next events, over broken connections."""
        retries = WatchRetries()
        while not self._is_closed:
            job = self._client.job_name
            asked = requests.make_watch(job, self._keys, self._place, wait=True)
            begun = time.monotonic()
            self._polling = asyncio.ensure_future(self._client.request(asked, POLL_SECONDS))
            try:
                batch = await self._polling  # cancelled with this task
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise
                return  # by `close`
            except (CoordinatorUnavailable, StoreTimeout) as error:
                await asyncio.sleep(retries.find_pause(error, begun, time.monotonic()))
                continue
            finally:
                self._polling = None
            self._place = batch.place
            self._events.extend(batch.events)
            return


def _is_cancelled() -> bool:
    """Return whether this task is to end, and not a future that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
