"""Conditions whose lock survives handlers of signals that raise."""

import contextlib
import threading
from operator import attrgetter


class InterruptibleCondition(threading.Condition):
    """A condition whose lock is held in its blocks, and nowhere else, whatever a handler raises.

    The interpreter runs handlers after calls, those of functions in C included. So one may raise in
    `threading.Condition.__enter__`, which has acquired the lock, before the block is entered that
    would release it: all others wait for ever then. And in `wait`, between the release and the
    block that would acquire it again: then RuntimeError takes the place of what the handler raised.
    """

    # `with` asks for these, and calls what it gets, the lock's own functions in C: nothing comes
    # between those and the block.
    __enter__ = property(attrgetter("acquire"))
    __exit__ = property(attrgetter("_lock.__exit__"))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until notified; return whether that came within `timeout` seconds.

        The lock must be held, once.
        """
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)  # type: ignore[attr-defined]
        has_come = False
        try:
            self.release()  # the block's first: wherever a handler raises in it, this has been done
            has_come = waiter.acquire(timeout=-1 if timeout is None else max(timeout, 0))
            return has_come
        finally:
            try:
                self.acquire()
            except BaseException:  # of a handler, as the lock was waited for, or just behind
                while not self._is_owned():  # type: ignore[attr-defined]
                    self.acquire()
                raise
            if not has_come:
                with contextlib.suppress(ValueError):  # it has just been notified
                    self._waiters.remove(waiter)  # type: ignore[attr-defined]
