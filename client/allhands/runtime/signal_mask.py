"""Deferral of Python's signal handlers during uninterruptible blocks."""

# What `signal` puts enums around, which take ten times as long.
import _signal  # type: ignore[import-not-found]
import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Self

from allhands.runtime.termination import TerminationHandler

_HANDLED_SIGNALS = tuple(
    int(getattr(signal, name))
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)
"""Those whose handlers raise in the programs of people."""


class DelayedSignals:
    """A block without signal handlers; signals within the block are raised at the end.

    On threads other than the main thread, where handlers never run, it does nothing.
    """

    __slots__ = ("_came", "_handlers", "_held")

    def __init__(self) -> None:
        self._came: list[int] = []
        self._held: list[TerminationHandler] = []
        self._handlers: list[tuple[int, object]] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    @contextlib.contextmanager
    def allow(self) -> Iterator[None]:
        """Let handlers run within a nested block, first for the signals delayed so far."""
        deferred = bool(self._handlers or self._held)
        try:
            self._restore()
            yield
        finally:
            if deferred:
                self._install()

    def _install(self) -> None:
        note, termination = self._record, None
        try:
            for number in _HANDLED_SIGNALS:
                handler = _signal.getsignal(number)
                if isinstance(handler, TerminationHandler):  # costs less than another handler
                    termination = handler
                elif callable(handler):
                    self._handlers.append((number, handler))
                    _signal.signal(number, note)
            if termination is not None:
                self._held.append(termination)
                termination.hold(self)
        except BaseException:  # of a handler that is yet to be replaced
            self._restore()
            raise

    def _restore(self) -> None:
        try:
            while self._handlers:
                _signal.signal(*self._handlers[-1])
                self._handlers.pop()
            while self._came:
                signal.raise_signal(self._came.pop(0))
            for handler in self._held:
                handler.release(self)
            self._held.clear()
        except BaseException:  # of a handler that is in its place again: so are to be the others
            self._restore()
            raise

    def _record(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)
