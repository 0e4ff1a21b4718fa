"""Output of a child process, read while it runs."""

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


class OutputReader:
    """Reads the pipes of a process, each on a thread of its own, to their ends.

    So the process is never held up by a full pipe, whoever looks at what it has written.
    """

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._ended: list[object] = []

    def read(
        self,
        pipe: Iterable[T] | None,
        take: Callable[[T], object],
        at_end: Callable[[], object] = lambda: None,
    ) -> None:
        """Begin to read a pipe: `take` is called with each line."""
        assert pipe is not None

        def read_lines() -> None:
            for line in pipe:
                take(line)
            self._ended.append(pipe)
            at_end()

        self._threads.append(threading.Thread(target=read_lines, daemon=True))
        self._threads[-1].start()

    @property
    def is_reading(self) -> bool:
        """Whether there is a pipe whose end has not come."""
        return len(self._ended) < len(self._threads)

    def join(self, timeout: float) -> None:
        """Wait until all has been read, for so many seconds a pipe."""
        for one in self._threads:
            one.join(timeout)
