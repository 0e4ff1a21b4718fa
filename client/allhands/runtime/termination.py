"""Termination: SIGTERM as an exception of the main thread, for ranks that a launcher ends.

By default SIGTERM ends a process on the spot: a rank that is blocked in a call could say neither
what it waited for nor to the others that it goes. Not for processes whose program handles SIGTERM.
"""

# What `signal` puts enums around, which take ten times as long.
import _signal  # type: ignore[import-not-found]
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

SIGNUM = int(signal.SIGTERM)


class Terminated(SystemExit):
    """Exception of SIGTERM; exits with the status of a shell, 143."""

    def __init__(self) -> None:
        super().__init__(128 + SIGNUM)


INTERRUPTIONS = (KeyboardInterrupt, Terminated)
"""Exceptions of signals that end a call, whose reason is sent to the other ranks."""


def get_cancel_reason(exception_name: str) -> str:
    """Return the reason sent to the other ranks when an exception ended a call."""
    return {"KeyboardInterrupt": "Ctrl-C", "Terminated": "SIGTERM"}.get(
        exception_name, exception_name
    )


class TerminationHandler:
    """The handler of SIGTERM while this process is in a world: it raises `Terminated`."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._ends: list[Callable[[], None]] = []
        self._holders: set[object] = set()
        self._has_come = False

    def add(self, end: Callable[[], None]) -> None:
        """Have `end` called when the signal comes."""
        self._ends.append(end)

    def remove(self, end: Callable[[], None]) -> bool:
        """Remove the callback `end`; return whether callbacks are left."""
        with contextlib.suppress(ValueError):
            self._ends.remove(end)
        return bool(self._ends)

    def hold(self, holder: object) -> None:
        """Delay the signal's effect until the holder's `release`. Main thread only."""
        self._holders.add(holder)

    def release(self, holder: object) -> None:
        """Apply a delayed signal, unless another holder delays it still. Idempotent.

        Raises:
            Terminated: the signal was delivered.
        """
        self._holders.discard(holder)
        if self._has_come and not self._holders:
            self._has_come = False
            self._end()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid or not self._ends:
            signal.signal(SIGNUM, signal.SIG_DFL)
            signal.raise_signal(SIGNUM)
        elif self._holders:
            self._has_come = True
        else:
            self._end()

    def _end(self) -> None:
        for end in [*self._ends]:
            end()
        raise Terminated


def find_installed() -> TerminationHandler | None:
    """Return the installed SIGTERM handler if a TerminationHandler, else None."""
    handler = _signal.getsignal(SIGNUM)
    return handler if isinstance(handler, TerminationHandler) else None


def install(end: Callable[[], None]) -> None:
    """Have SIGTERM call `end` and raise `Terminated`, unless the program handles it otherwise.

    On other threads than the main one, which alone may set handlers, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    handler = find_installed()
    if handler is None:
        if signal.getsignal(SIGNUM) is not signal.SIG_DFL:
            return
        handler = TerminationHandler()
        signal.signal(SIGNUM, handler)
    handler.add(end)


def uninstall(end: Callable[[], None]) -> None:
    """Undo `install`; the last call restores the previous SIGTERM handler."""
    handler = find_installed()
    if handler is None or handler.remove(end):
        return
    if threading.current_thread() is threading.main_thread():
        signal.signal(SIGNUM, signal.SIG_DFL)


def _restore_in_child() -> None:
    if find_installed() is not None:  # a forked process is no rank
        signal.signal(SIGNUM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_restore_in_child)
