"""One direction of traffic under a plan of faults."""

import asyncio
import math
from collections import deque
from collections.abc import Callable

from allhands.testing.faults import Fate, Plan, Way, flipped

BUFFER_BYTES = 4 << 20
"""Bytes on their way, beyond which who sends has to wait."""
_SLACK = 1e-9
"""Sums of floats come out by less, so that a timer may seem to be early by a hair."""
_OVERTAKEN_SECONDS = 0.05
"""After which a message that was to be overtaken arrives nevertheless."""

Deliver = Callable[[bytes], None]


class PlanClock:
    """Seconds since the plan began, on the loop's clock."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()

    def restart(self) -> None:
        self._start = self._loop.time()

    def now(self) -> float:
        return self._loop.time() - self._start

    def call_at(self, when: float, act: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_at(self._start + when, act)


class FaultyChannel:
    """In order, at the time and in the state that the plan gives each message."""

    def __init__(self, plan: Plan, way: Way, clock: PlanClock) -> None:
        self._plan = plan
        self._way = way
        self._clock = clock
        self._count = 0
        self._busy_until = 0.0
        self._queue: deque[tuple[float, int, Callable[[], None]]] = deque()
        self._overtaken: tuple[float, int, Callable[[], None]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._nbytes = 0
        self._is_closed = False

    @property
    def is_full(self) -> bool:
        return self._nbytes > BUFFER_BYTES

    async def wait_room(self) -> None:
        """Return when there is room again."""
        while self.is_full:
            await self._wait_change()

    async def wait_empty(self) -> None:
        """Return when all sent messages have been delivered."""
        while self._queue or self._overtaken is not None:
            await self._wait_change()

    def restart(self) -> None:
        """Count from the next message on."""
        self._count = 0
        self._busy_until = 0.0

    def put(self, message: bytes, deliver: Deliver, cut: Callable[[], None]) -> None:
        """Send a message; `cut` is called in its place if the connection breaks there."""
        now = self._clock.now()
        self._count += 1
        fate = self._plan.fate(self._way, self._count, len(message), now)
        if fate.is_cut:
            self._enqueue(self._reserve(fate, 0, now), 0, cut)
            return
        if fate.flips:
            message = flipped(message, fate.flips)
        due = self._reserve(fate, len(message), now)
        for _ in range(fate.copies):
            self._enqueue(due, len(message), lambda: deliver(message), fate.is_overtaken)

    def run_at_receiver(self, act: Callable[[], None]) -> None:
        """Run a function at the receiver behind the sent messages; only delays apply."""
        self._enqueue(self._clock.now(), 0, act)

    def clear(self) -> None:
        """Drop the messages under way."""
        self._queue.clear()
        self._overtaken = None
        self._nbytes = 0
        self._notify()

    def close(self) -> None:
        """Drop the messages under way and all later messages. Idempotent."""
        self._is_closed = True
        self.clear()
        if self._timer is not None:
            self._timer.cancel()

    async def _wait_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()

    def _reserve(self, fate: Fate, nbytes: int, now: float) -> float:
        begun = max(self._busy_until, now)
        self._busy_until = begun + (0.0 if math.isinf(fate.rate) else nbytes / fate.rate)
        return self._busy_until + fate.delay

    def _enqueue(
        self, due: float, nbytes: int, act: Callable[[], None], is_overtaken: bool = False
    ) -> None:
        if self._is_closed:
            return
        self._nbytes += nbytes
        if is_overtaken and self._overtaken is None:
            self._overtaken = due, nbytes, act
            self._clock.call_at(due + _OVERTAKEN_SECONDS, self._give_up_overtaking)
            return
        self._queue.append((due, nbytes, act))
        if self._overtaken is not None:
            self._queue.append(self._overtaken)
            self._overtaken = None
        self._arm()

    def _give_up_overtaking(self) -> None:
        if self._overtaken is not None:
            self._queue.append(self._overtaken)
            self._overtaken = None
            self._arm()

    def _arm(self) -> None:
        """Set the timer for the first message, unless it is set."""
        if self._timer is not None or not self._queue:
            return
        now = self._clock.now()
        due = self._plan.held_until(self._way, max(self._queue[0][0], now))
        if not math.isinf(due):
            # Through the loop, as a network would: nobody runs inside the sender's call.
            self._timer = self._clock.call_at(due, self._run)

    def _run(self) -> None:
        """Deliver the messages that are due."""
        self._timer = None
        now = self._clock.now() + _SLACK
        while self._queue and self._plan.held_until(self._way, now) <= now:
            due, nbytes, act = self._queue[0]
            if due > now:
                break
            self._queue.popleft()
            self._nbytes -= nbytes
            act()
        self._notify()
        self._arm()


class FaultyChannels:
    """The channels of all directions under one plan; without faults before `begin`."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.plan.is_over = True
        self.clock = PlanClock()
        self._channels: dict[Way, FaultyChannel] = {}
        self._timers: list[asyncio.TimerHandle] = []

    def begin(self) -> None:
        """Let the plan's time begin, and its count of messages, with nothing under way."""
        self.clock.restart()
        for wire in self._channels.values():
            wire.restart()
        self.plan.begin()
        for cutoff in self.plan.cutoffs:
            ranks = tuple(sorted(frozenset[int]().union(*cutoff.sides)))
            self._note(cutoff.after, cutoff.kind, ranks)
            if not math.isinf(cutoff.until):
                self._note(cutoff.until, f"end of {cutoff.kind}", ranks)

    def get_channel(self, start: int, end: int) -> FaultyChannel:
        """Return the channel between two ends; its messages are counted once."""
        way = start, end
        if way not in self._channels:
            self._channels[way] = FaultyChannel(self.plan, way, self.clock)
        return self._channels[way]

    def heal(self) -> None:
        """End all faults, and deliver messages that were held back."""
        self.plan.is_over = True
        for wire in self._channels.values():
            wire._arm()

    def close(self) -> None:
        """Drop the messages under way."""
        for timer in self._timers:
            timer.cancel()
        for wire in self._channels.values():
            wire.close()

    def _note(self, when: float, kind: str, ranks: tuple[int, ...]) -> None:
        plan = self.plan

        def note() -> None:
            if not plan.is_over:
                plan.note(when, kind, ranks)

        self._timers.append(self.clock.call_at(when, note))
