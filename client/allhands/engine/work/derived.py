"""Work of calls whose result is made from theirs, once they have ended."""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from allhands.collectives.signature import Result
from allhands.engine.work.work import Work
from allhands.futures import Future, collect_all


class DerivedWork(Work):
    """The work of several calls, with a result made from what they have written."""

    def __init__(self, works: Sequence[Work], make: Callable[[], Result]) -> None:
        """`make` is called once, when all of `works` have ended well; it may take a copy."""
        first = works[0]
        self.operation, self.sequence = first.operation, first.sequence
        self.label, self.group = first.label, first.group
        self._works = tuple(works)
        self._make = make
        self._lock = threading.Lock()
        self._made: tuple[Result] | None = None

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        if timeout is None:
            for work in self._works:
                work.wait()
            return True
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        due = time.monotonic() + seconds
        for work in self._works:
            work.wait(max(due - time.monotonic(), 0.0))
        return True

    @property
    def has_ended(self) -> bool:
        return all(work.has_ended for work in self._works)

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        errors = (work.exception() for work in self._works)
        return next((error for error in errors if error is not None), None)

    def result(self) -> Result:
        """Wait, then return the new arrays, the same each time."""
        self.wait()
        with self._lock:
            if self._made is None:
                self._made = (self._make(),)
            return self._made[0]

    def get_future(self) -> Future[Result]:
        ended = collect_all([work.get_future() for work in self._works])
        return ended.then(lambda _: self.result())

    def explain(self) -> str:
        return "; ".join(work.explain() for work in self._works)

    def cancel(self) -> None:
        for work in self._works:
            work.cancel()

    def abandon(self, why: str = "Ctrl-C") -> None:
        for work in self._works:
            work.abandon(why)


def give_result(works: Sequence[Work | None], make: Callable[[], Result]) -> Result:
    """Return a result at once after calls that were waited for, else the work that gives it.

    Of a call that was waited for there is None in place of a work: of all of them or of none.
    """
    if works[0] is None:
        return make()
    return DerivedWork([work for work in works if work is not None], make)
