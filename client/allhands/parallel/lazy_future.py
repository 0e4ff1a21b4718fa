"""Lazy future: completed by the first thread to request its result."""

import threading
from collections.abc import Callable
from typing import TypeVar

from allhands.futures import Future

T = TypeVar("T")
S = TypeVar("S")


class LazyFuture(Future[T]):
    """Future of a hook's remaining work after its first collective.

    The rest runs on the thread that asks first, by `result` or `exception`; until then the future
    is not done. So a reducer that asks bucket by bucket makes the further collectives of all its
    buckets in an order that is the same on all ranks, and no thread that carries data computes.
    """

    def __init__(self, finish: Callable[[], T]) -> None:
        super().__init__()
        self._finish = finish
        self._finish_lock = threading.Lock()

    def result(self, timeout: float | None = None) -> T:
        """Do the remaining work, unless already done, and return its result."""
        self._complete()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Do the remaining work, unless already done, and return its error."""
        self._complete()
        return super().exception(timeout)

    def then(self, function: "Callable[[Future[T]], S]") -> Future[S]:
        """Return the future of `function(self)`, just as lazy."""

        def follow() -> S:
            self.exception()
            return function(self)

        return LazyFuture(follow)

    def _complete(self) -> None:
        with self._finish_lock:
            if self.done():
                return
            try:
                given = self._finish()
            except BaseException as error:
                self.set_exception(error)
                if not isinstance(error, Exception):
                    raise
            else:
                self.set_result(given)
