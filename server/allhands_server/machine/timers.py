"""Timers of the machine, ordered by due time, without a clock."""

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from allhands_server.machine.effects import Effect

Action: TypeAlias = Callable[[float], list[Effect]]
"""Called with the time that it is then."""

_TIDY_FROM = 64
_LATE = 0.001
"""Seconds by which a punctual shell may be late, as event loops round."""
_LATENESS_KEPT = 10.0
"""Seconds for which lateness is known."""


class Timer:
    """An action due at a time, until cancelled."""

    __slots__ = ("_queue", "action", "due")

    def __init__(self, queue: "TimerQueue", due: float, action: Action) -> None:
        self._queue = queue
        self.due = due
        self.action: Action | None = action

    def cancel(self) -> None:
        """Drop the action. Idempotent, also after the action has run."""
        if self.action is not None:
            self.action = None
            self._queue._note_cancelled()


class TimerQueue:
    """Timers in order of due times, equal times in order of creation."""

    def __init__(self) -> None:
        self.now = 0.0
        """Time of the event under way."""
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._dead = 0
        self._late: deque[tuple[float, float]] = deque()
        """Times at which timers ran late, and by how much: each less than the one before."""

    @property
    def next_due(self) -> float | None:
        while self._heap and self._heap[0][2].action is None:
            heapq.heappop(self._heap)
            self._dead -= 1
        return self._heap[0][0] if self._heap else None

    def schedule(self, due: float, action: Action) -> Timer:
        timer = Timer(self, due, action)
        heapq.heappush(self._heap, (due, next(self._numbers), timer))
        return timer

    def run_due(self, now: float) -> list[Effect]:
        """Run every action due by `now`, including actions scheduled meanwhile."""
        effects: list[Effect] = []
        if (due := self.next_due) is not None and now - due > _LATE:
            self._note_late(now, now - due)
        while (due := self.next_due) is not None and due <= now:
            action = heapq.heappop(self._heap)[2]
            assert action.action is not None  # next_due dropped the cancelled ones
            act, action.action = action.action, None
            effects += act(now)
        return effects

    def find_lateness(self, since: float) -> float:
        """Return the seconds by which timers ran late at most, from a time on.

        A shell that calls late is busy or was held up: what it has received may lie unread.
        """
        return next((late for at, late in self._late if at >= since), 0.0)

    def _note_late(self, now: float, late: float) -> None:
        while self._late and self._late[-1][1] <= late:
            self._late.pop()
        self._late.append((now, late))
        while self._late[0][0] < now - _LATENESS_KEPT:
            self._late.popleft()

    def _note_cancelled(self) -> None:
        self._dead += 1
        # Waits mostly end long before they are due: without this, the heap would remember them.
        if self._dead > _TIDY_FROM and self._dead * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapq.heapify(self._heap)
            self._dead = 0
