"""Threads that a world starts beside its loop, joined before the world is left."""

import threading
import time
from collections.abc import Callable


class HelperThreads:
    """Daemon threads with an owner that waits for their end; started from any thread.

    Joined, because what they drop may be a tensor: a thread that the interpreter's end stops within
    PyTorch's C++ code aborts the process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self, name: str, act: Callable[[], None]) -> None:
        """Run `act` on a thread of its own; whoever starts it lets it return before `join`."""
        thread = threading.Thread(target=act, name=name, daemon=True)
        with self._lock:
            self._threads = [one for one in self._threads if one.is_alive()]
            thread.start()
            self._threads.append(thread)

    def join(self, seconds: float) -> list[str]:
        """Wait for the threads' end; return the names of those that still run after `seconds`.

        Called from one of them, it waits for the others.
        """
        until = time.monotonic() + seconds
        with self._lock:
            threads = [one for one in self._threads if one is not threading.current_thread()]
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0))
        return [thread.name for thread in threads if thread.is_alive()]
