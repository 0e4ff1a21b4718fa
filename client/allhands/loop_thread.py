"""A thread with an event loop of its own: where a worker's I/O lives."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")


class LoopThread:
    """Runs coroutines and callbacks for other threads until it is stopped."""

    def __init__(self, name: str) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for it; Ctrl-C here cancels it there.

        Raises:
            RuntimeError: called on the loop itself, which would wait for itself.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("this would block the thread that does allhands' own I/O")
        try:
            self._check()
        except RuntimeError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise
        except BaseException:
            future.cancel()
            raise

    def call(self, act: Callable[..., object], *arguments: object) -> None:
        """Call a function there, soon; calls keep their order.

        Raises:
            RuntimeError: the thread is gone.
        """
        self._check()
        self.loop.call_soon_threadsafe(act, *arguments)

    def stop(self) -> None:
        """End the loop and the thread. Idempotent."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()

    def _check(self) -> None:
        if not self._thread.is_alive():
            raise RuntimeError(
                "this process has left its world, or was forked from a rank: "
                "a forked child must call init_process_group() for itself"
            )

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
