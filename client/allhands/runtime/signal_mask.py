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
        note = self._record
        for number in _HANDLED_SIGNALS:
            handler = _signal.getsignal(number)
            if isinstance(handler, TerminationHandler):  # costs less than another handler
                self._held.append(handler)
                handler.hold()
            elif callable(handler):
                self._handlers.append((number, handler))
                _signal.signal(number, note)

    def _restore(self) -> None:
        handlers, self._handlers = self._handlers, []
        for number, handler in handlers:
            _signal.signal(number, handler)
        came, self._came = self._came, []
        held, self._held = self._held, []
        try:
            for number in came:
                signal.raise_signal(number)
        finally:
            for handler in held:
                handler.release()

    def _record(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)
