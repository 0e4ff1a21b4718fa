"""Virtual time: a loop that never sleeps and jumps to the next timer.

What runs on it is repeatable: nothing but timers and calls decides what comes next. Threads beside
the loop are not waited for before time goes on, so what is to be repeated starts none.
"""

import asyncio
import selectors
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

_PATIENCE = 1.0
"""Real seconds for a thread or a socket to say something, when the loop has no timer left."""


class Standstill(RuntimeError):
    """Nothing can happen any more: no timer, no call, nothing from outside."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop whose clock starts at 0 and advances only when idle."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_SkippingSelector(self))

    def time(self) -> float:
        return self.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time, as `asyncio.run` does in real time.

    On this thread `time.monotonic` tells the loop's time meanwhile, so that code which computes
    deadlines with it sees the same clock as the loop's timers; other threads see the real one.

    Raises:
        Standstill: it waits for what cannot come.
    """
    loop = VirtualLoop()
    with _patch_monotonic(loop), asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main)


class _SkippingSelector(selectors.BaseSelector):
    """Selector that advances the clock in place of waiting."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._real = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if ready or timeout == 0:
            return ready
        if timeout is not None:
            self._loop.now += timeout
            return []
        ready = self._real.select(_PATIENCE)
        if not ready:
            raise Standstill("everything waits, and no timer is left that could change that")
        return ready

    def register(self, fileobj: Any, events: int, data: object = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: object = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


@contextmanager
def _patch_monotonic(loop: VirtualLoop) -> Iterator[None]:
    real, here = time.monotonic, threading.get_ident()

    def monotonic() -> float:
        return loop.now if threading.get_ident() == here else real()

    time.monotonic = monotonic
    try:
        yield
    finally:
        time.monotonic = real
