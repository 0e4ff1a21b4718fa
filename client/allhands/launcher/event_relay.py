"""Relay of a job's events to sinks, on a thread of its own: the ranks never wait for it."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from allhands.coordinator.client import Control
from allhands.coordinator.endpoint import Endpoint
from allhands.coordinator.event_calls import JobEvent
from allhands.errors import AllhandsError, NotFound
from allhands.launcher.event_sinks import DeliveryFailed, EventOutlets
from allhands.launcher.own_events import Note

DELIVERY_SECONDS = 10.0
FINISH_SECONDS = 5.0
"""For all that is left when the job has ended."""
_PAUSE = 0.5
_CALL_SECONDS = 5.0
_OWN_EVENTS = 64
"""Notes of the launcher that may wait; older ones are dropped."""
_BY = "allhands run"


class EventRelay:
    """Asks the coordinator for new events, and gives them to each sink in order.

    Nothing piles up behind a slow sink: events that the coordinator has forgotten meanwhile are
    missing, as the gap in their numbers shows.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        job: str,
        outlets: EventOutlets,
        say: Callable[[str], None],
    ) -> None:
        self._endpoint = endpoint
        self._job = job
        self._outlets = outlets
        self._say = say
        self._seen = 0
        self._notes: deque[JobEvent] = deque(maxlen=_OWN_EVENTS)
        self._failing: set[str] = set()
        """Sinks whose failure has been told, until they work again."""
        self._ending = threading.Event()
        self._limit = float("inf")
        """When all has to be over, by the monotonic clock."""
        self._thread = threading.Thread(target=self._run, name="allhands events", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def note(self, kind: str, text: str) -> None:
        """Relay an event that the coordinator does not know; from any thread, at once."""
        self._notes.append(JobEvent(0, time.time(), kind, text, None, "", 0, _BY))

    def finish(self) -> None:
        """Deliver what is left, within `FINISH_SECONDS`, and end."""
        self._limit = time.monotonic() + FINISH_SECONDS
        self._ending.set()
        self._thread.join(FINISH_SECONDS)
        for sink in self._outlets.sinks:
            sink.close()

    def _run(self) -> None:
        with Control(self._endpoint, job=self._job, timeout=_CALL_SECONDS) as control:
            while not self._ending.wait(_PAUSE):
                self._relay(control)
            self._relay(control)

    def _relay(self, control: Control) -> None:
        while self._notes:
            self._give(self._notes.popleft())
        try:
            found = control.events(after=self._seen)
        except NotFound:  # no rank has joined
            return
        except AllhandsError as error:
            self._tell_once("events", f"the events of the job cannot be read: {error}")
            return
        for event in found:
            self._give(event)
            self._seen = event.number

    def _give(self, event: JobEvent) -> None:
        """Give an event to all sinks, unless the time is over."""
        document = self._outlets.format_event(self._job, event)
        for sink in self._outlets.sinks:
            seconds = min(DELIVERY_SECONDS, self._limit - time.monotonic())
            if seconds <= 0:
                self._tell_once("late", "the last events were not delivered in time")
                return
            try:
                sink.deliver(document, seconds)
            except DeliveryFailed as error:
                self._tell_once(sink.name, f"{sink.name}: {error}; the job goes on")
            else:
                self._failing.discard(sink.name)

    def _tell_once(self, key: str, text: str) -> None:
        if key not in self._failing:
            self._failing.add(key)
            self._say(text)


@asynccontextmanager
async def relay_events(
    endpoint: Endpoint, job: str, outlets: EventOutlets, say: Callable[[str], None]
) -> AsyncIterator[Note]:
    """Relay the events of a job while the block lasts; yield what takes the launcher's own."""
    relay = EventRelay(endpoint, job, outlets, say)
    relay.start()
    try:
        yield relay.note
    finally:
        await asyncio.to_thread(relay.finish)
