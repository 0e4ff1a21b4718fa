"""Python's handlers of signals, kept from breaking into what must be done whole."""

# What `signal` puts enums around, which take ten times as long.
import _signal  # type: ignore[import-not-found]
import signal
import threading
from types import FrameType, TracebackType

_RAISING = tuple(
    int(getattr(signal, name))
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)
"""Those whose handlers raise in the programs of people."""


class Deferred:
    """A block in which no handler runs; signals that came meanwhile are raised as it ends.

    On other threads than the main one, where none ever runs, it does nothing.
    """

    __slots__ = ("_came", "_handlers")

    def __init__(self) -> None:
        self._came: list[int] = []
        self._handlers: list[tuple[int, object]] = []

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            note = self._note
            for number in _RAISING:
                if callable(handler := _signal.getsignal(number)):
                    self._handlers.append((number, handler))
                    _signal.signal(number, note)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._handlers:
            _signal.signal(number, handler)
        for number in self._came:
            signal.raise_signal(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)
