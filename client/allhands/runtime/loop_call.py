"""Loop calls: coroutines on an event loop, with a thread that waits for the result."""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class LoopCall(Generic[T]):
    """A coroutine on a loop; handlers of signals may raise in the waiting thread at any moment.

    With a `concurrent.futures.Future` they may not: an exception between its lock's acquisition and
    the block under the lock leaves the lock held, and the loop waits for it for ever; one in the
    midst of `Condition.wait` makes the lock be released twice, and a RuntimeError takes its place.
    Here no lock is ever held that the loop waits for.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, start: Callable[[], Coroutine[Any, Any, T]]
    ) -> None:
        """`start` makes the coroutine, on the loop: one made before could be dropped unawaited."""
        self._loop = loop
        self._start = start
        self._task: asyncio.Task[T] | None = None
        self._has_ended = False
        self._ended = threading.Lock()
        """Released when the coroutine has ended."""
        self._ended.acquire()

    def submit(self) -> None:
        """Schedule the coroutine.

        Raises:
            RuntimeError: the loop is closed.
        """
        self._loop.call_soon_threadsafe(self._begin)

    def wait(self, timeout: float = -1) -> T:
        """Wait for the coroutine, once; return the result or raise the error. Negative: no limit.

        Raises:
            TimeoutError: it has not ended within `timeout` seconds; it goes on.
            concurrent.futures.CancelledError: it was cancelled.
        """
        if not self._ended.acquire(timeout=timeout):
            raise TimeoutError
        task, self._task = self._task, None
        assert task is not None, "it has ended"
        try:
            return task.result()
        except asyncio.CancelledError:
            raise concurrent.futures.CancelledError from None
        finally:
            del task  # which has the error, and that this frame

    def cancel(self) -> None:
        """Cancel the coroutine, unless it has ended or was not submitted."""
        if not self._has_ended:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._cancel)

    # ------------------------------------------------------------ on the loop

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._start())
        self._task.add_done_callback(self._end)

    def _cancel(self) -> None:
        if (task := self._task) is not None:
            task.cancel()

    def _end(self, task: "asyncio.Task[T]") -> None:
        if not task.cancelled():
            task.exception()  # else the loop logs it where nobody waits any more
        self._has_ended = True
        self._ended.release()
