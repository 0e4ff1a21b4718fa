"""Futures: results of calls, for waiting threads and for callbacks.

A `Future` is a `concurrent.futures.Future`, so all that takes those takes it: `as_completed`,
`asyncio.wrap_future`.
"""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from allhands.errors import ForkedProcess
from allhands.runtime.callbacks import Callbacks
from allhands.runtime.interruptible_condition import InterruptibleCondition
from allhands.tracebacks import trim_traceback

T = TypeVar("T")
S = TypeVar("S")

__all__ = ["Future", "collect_all", "wait_all"]

_DONE = "CANCELLED", "CANCELLED_AND_NOTIFIED", "FINISHED"


class Future(concurrent.futures.Future[T], Generic[T]):
    """The future value of a call; safe from any thread.

    Functions called when a call has ended run on threads of its world for that, so they may make
    calls and wait for them; leaving the world waits for them. Those of a future of yours run on
    the thread that completes it. Of a future that is done they run at once, on the caller's.
    """

    def __init__(self, callbacks: Callbacks | None = None) -> None:
        super().__init__()
        # The loop completes works: it must not wait for a lock that Ctrl-C has left held. The class
        # is replaced, since to make another condition takes longer.
        self._condition.__class__ = InterruptibleCondition
        self._callbacks = callbacks

    def result(self, timeout: float | None = None) -> T:
        """Wait for the value; return the value or raise the call's error.

        Raises:
            TimeoutError: it is not there within so many seconds.
            ForkedProcess: the call is one of the process that this one was forked from.
        """
        try:
            self.check_inherited()
            return super().result(timeout)
        except Exception as error:
            trim_traceback(error)
            raise

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until done, and return the error, if any; raises as `result` does."""
        self.check_inherited()
        return super().exception(timeout)

    def check_inherited(self) -> None:
        """Refuse to wait in a forked child for the end of a call of its parent.

        Raises:
            ForkedProcess: it had not ended when this process was forked.
        """
        if self._callbacks is None or not self._callbacks.is_inherited:
            return
        if self._state not in _DONE:
            raise ForkedProcess("the call whose future this is")
        self._condition = InterruptibleCondition()  # a thread of the parent may have had its lock

    def wait(self, timeout: float | None = None) -> T:
        """Block until done; return the value or raise the call's error.

        Raises:
            TimeoutError: it is not there within so many seconds.
        """
        return self.result(timeout)

    def value(self) -> T:
        """Return the value of a done future, or raise the call's error.

        Raises:
            RuntimeError: it is not done.
        """
        if not self.done():
            raise RuntimeError("the future is not done: wait() for it, or ask within then()")
        return self.result()

    def then(self, function: "Callable[[Future[T]], S]") -> "Future[S]":
        """Call `function(self)` once this is done, well or not; return the future of its result.

        What `function` raises, `value()` of a future that failed included, is what the new one
        raises. Of several functions each may be called first.

        Raises:
            TypeError: it cannot be called.
        """
        if not callable(function):
            raise TypeError(f"then() wants a function of the future, not {function!r}")
        following: Future[S] = Future(self._callbacks)

        def follow(_: object) -> None:
            try:
                given = function(self)
            except BaseException as error:
                following.set_exception(error)
            else:
                following.set_result(given)

        self.add_done_callback(follow)
        return following

    def add_done_callback(self, fn: Callable[["concurrent.futures.Future[T]"], object]) -> None:
        """Call `fn(self)` once done, with a result or an error; exceptions of `fn` are logged."""
        if self._callbacks is None or self.done():
            super().add_done_callback(fn)
            return
        callbacks, giver, is_given = self._callbacks, threading.get_ident(), False

        def hand_over(_: object) -> None:
            was_done = not is_given and threading.get_ident() == giver
            if was_done or not callbacks.run(lambda: fn(self)):
                fn(self)

        super().add_done_callback(hand_over)
        is_given = True


def wait_all(futures: "Sequence[Future[T]]") -> list[T]:
    """Wait for all the futures, and return the values in order.

    The first failure is raised as soon as it is known, without waiting for the others.
    """
    concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_EXCEPTION)
    for future in futures:
        if future.done():
            future.result()
    return [future.result() for future in futures]


def collect_all(futures: "Sequence[Future[T]]") -> "Future[list[Future[T]]]":
    """Return a future of the list of `futures`, done when all are, successful or not."""
    listed = list(futures)
    callbacks = next((one._callbacks for one in listed if one._callbacks is not None), None)
    collected: Future[list[Future[T]]] = Future(callbacks)
    left = len(listed)
    lock = threading.Lock()

    def count_ended(_: object) -> None:
        nonlocal left
        with lock:
            left -= 1
            is_last = left == 0
        if is_last:
            collected.set_result(listed)

    if not listed:
        collected.set_result(listed)
    for future in listed:
        add_inline_callback(future, count_ended)
    return collected


def add_inline_callback(future: "Future[T]", function: Callable[[Any], object]) -> None:
    """Call a non-blocking function when the future is done, on the completing thread."""
    concurrent.futures.Future.add_done_callback(future, function)


def wrap_for_loop(future: "Future[T]") -> "asyncio.Future[T]":
    """Return the future for the running loop, as `asyncio.wrap_future`, without another thread."""
    loop = asyncio.get_running_loop()
    mine: asyncio.Future[T] = loop.create_future()

    def complete() -> None:
        if mine.done():
            return
        if (error := future.exception()) is not None:
            mine.set_exception(error)
        else:
            mine.set_result(future.result())

    def schedule_completion(_: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone
            loop.call_soon_threadsafe(complete)

    add_inline_callback(future, schedule_completion)
    return mine
