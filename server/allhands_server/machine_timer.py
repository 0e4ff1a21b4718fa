"""Timer for the machine's next due time."""

import asyncio
import math
from collections.abc import Callable

_STEP = 0.001  # uvloop's timers count whole milliseconds


class MachineTimer:
    """One timer of the running loop, set anew as the due time changes."""

    def __init__(self, clock: Callable[[], float], on_due: Callable[[], None]) -> None:
        """`on_due` is called at the due time, or up to a millisecond later."""
        self._clock = clock
        self._on_due = on_due
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._due: float | None = None

    def set(self, due: float | None) -> None:
        """Set the timer; None: there is nothing to do."""
        if due == self._due:
            return
        self.cancel()
        self._due = due
        if due is not None:
            steps = math.ceil(max(0.0, due - self._clock()) / _STEP)
            self._handle = self._loop.call_later(steps * _STEP, self._ring)

    def cancel(self) -> None:
        """Let the timer be. Idempotent."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._due = None

    def _ring(self) -> None:
        self._handle = self._due = None
        self._on_due()
