"""Cancellation of a blocking call by another thread."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class CallCanceller:
    """The way to cancel the call that another thread is in; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancel: Callable[[], object] | None = None
        self._is_cancelled = False

    @property
    def is_cancelled(self) -> bool:
        return self._is_cancelled

    def cancel(self) -> None:
        """Cancel the call under way, and those to come. Idempotent."""
        with self._lock:
            self._is_cancelled = True
            if self._cancel is not None:
                self._cancel()

    @contextmanager
    def hold(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Let `cancel` be called for the duration of a block."""
        with self._lock:
            self._cancel = cancel
            if self._is_cancelled:
                cancel()
        try:
            yield
        finally:
            with self._lock:
                self._cancel = None
