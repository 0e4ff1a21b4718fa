"""Watches of keys for threads: events in order, each once, also over restarts."""

import threading
import time
from collections import deque
from types import TracebackType
from typing import Protocol, Self

from allhands.coordinator.kv import requests
from allhands.coordinator.kv.cancelling import CallCanceller
from allhands.coordinator.kv.records import KeyEvent, WatchBatch, WatchPlace
from allhands.coordinator.kv.requests import AnyKvRequest, WatchedKeys
from allhands.coordinator.kv.watching import POLL_SECONDS, WatchRetries
from allhands.deadlines import Timeout
from allhands.errors import CoordinatorUnavailable, StoreTimeout


class WatchRequester(Protocol):
    """Function that makes a request of a watch."""

    def __call__(
        self,
        asked: AnyKvRequest[WatchBatch],
        timeout: Timeout | None = None,
        canceller: CallCanceller | None = None,
        /,
    ) -> WatchBatch: ...


class Watch:
    """Iterator over the events of keys: none missed, none twice, in order.

    Endless, until closed, from any thread. A connection that breaks is made again, and the watch
    goes on where it was; so does a new watch from `next_revision`, where no event of that revision
    is known. With `with`, events from the beginning of the block on are seen.

    Iteration raises:
        Compacted: events from this place on are not all known any more: look at the keys, and watch
            on behind the revision of that look.
        Refused: the coordinator has other keys than those watched before.
        StoreTimeout: the deadline of a block around the iteration is over.
        CoordinatorUnavailable: the coordinator was away for long.
    """

    def __init__(
        self, request: WatchRequester, job: str, keys: WatchedKeys, place: WatchPlace
    ) -> None:
        self._request = request
        self._job = job
        self._keys = keys
        self._place = place
        self._events: deque[KeyEvent] = deque()
        self._closed = threading.Event()
        self._canceller = CallCanceller()

    @property
    def next_revision(self) -> int:
        """Revision to watch from in order to go on; 0: not begun."""
        return self._events[0].revision if self._events else self._place.revision

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration, also one that waits in another thread. Idempotent."""
        self._closed.set()
        self._canceller.cancel()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> KeyEvent:
        while not self._closed.is_set():
            if self._events:
                return self._events.popleft()
            self._begin()
            self._poll()
        raise StopIteration

    def _begin(self) -> None:
        """Settle the revision that the watch begins with."""
        if not self._place.revision:
            asked = requests.make_watch(self._job, self._keys, self._place, wait=False)
            self._place = self._request(asked).place

    def _poll(self) -> None:
        """Wait for the next events, over broken connections."""
        retries = WatchRetries()
        while not self._closed.is_set():
            asked = requests.make_watch(self._job, self._keys, self._place, wait=True)
            begun = time.monotonic()
            try:
                batch = self._request(asked, POLL_SECONDS, self._canceller)
            except (CoordinatorUnavailable, StoreTimeout) as error:
                if not self._closed.is_set():
                    self._closed.wait(retries.find_pause(error, begun, time.monotonic()))
                continue
            self._place = batch.place
            self._events.extend(batch.events)
            return
