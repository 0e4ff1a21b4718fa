"""Callbacks: threads that run a program's functions after calls complete.

Never the thread that completed a call: the callback may wait for work of that very thread.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

from allhands.runtime.helper_threads import HelperThreads
from allhands_proto import forks

if TYPE_CHECKING:
    from allhands._native import DueTimer

logger = logging.getLogger(__name__)

_BASE_THREADS = 2
"""Threads that are started as they are wanted; further ones only while these make no progress."""
_STUCK_SECONDS = 0.01
"""Without progress for so long all threads are taken to wait for something."""


class _ThreadState(threading.local):
    """State of a callback thread."""

    is_ending = False
    """Whether what it runs is about to return."""
    next_call: Callable[[], object] | None = None
    """What it runs then."""


class Callbacks:
    """Runs functions in submission order on a pool of threads; submitted from any thread.

    A function may wait for the effect of another: while no running function makes progress, a
    thread is added.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._queue: deque[Callable[[], object]] = deque()
        self._threads: set[threading.Thread] = set()
        self._thread_state = _ThreadState()
        self._idle = 0
        self._urgent_count = 0
        """Upper bound of the threads that run functions of `run_urgent`."""
        self._progress = 0
        """Functions that have begun or ended."""
        self._is_watched = False
        self._is_closed = False
        self._due_timer: DueTimer | None = None
        self._timer_threads = HelperThreads()
        """Starts the one that waits for `_due_timer`."""
        self._generation = forks.generation

    @property
    def is_inherited(self) -> bool:
        """Whether the threads run in the parent of this forked process."""
        return forks.is_inherited(self._generation)

    def run(self, act: Callable[[], object]) -> bool:
        """Queue a function; False if closed or in a forked child."""
        if self.is_inherited:
            return False
        own = self._thread_state
        if own.is_ending and own.next_call is None:
            own.next_call = act
            return True
        with self._changed:
            if self._is_closed:
                return False
            self._queue.append(act)
            if len(self._queue) <= self._idle:  # who was told to wake up takes one as well
                self._changed.notify()
            elif len(self._threads) - self._urgent_count < _BASE_THREADS:
                self._start_thread(self._run_queue)
            elif not self._is_watched:
                self._is_watched = True
                self._start_thread(self._watch)
            return True

    def run_urgent(self, act: Callable[[], object]) -> bool:
        """Queue a function ahead of all queued functions; False if closed or in a forked child.

        A thread is added if none is idle, however many are blocked.
        """
        if self.is_inherited:
            return False

        def run_and_count() -> None:
            try:
                act()
            finally:
                with self._changed:
                    self._urgent_count -= 1

        with self._changed:
            if self._is_closed:
                return False
            self._urgent_count += 1
            self._queue.appendleft(run_and_count)
            if len(self._queue) <= self._idle:
                self._changed.notify()
            else:
                self._start_thread(self._run_queue)
            return True

    def get_due_timer(self, core: ModuleType) -> "DueTimer":
        """Return the timer of queued calls of all groups; a thread has them run once they are due.

        `core` is the native core.
        """
        with self._changed:
            if self._due_timer is None:
                self._due_timer = core.DueTimer()
                if self._is_closed:
                    self._due_timer.close()
                else:
                    self._timer_threads.start(f"due calls of {self._name}", self._run_due_calls)
            return self._due_timer

    @contextlib.contextmanager
    def mark_ending(self) -> Iterator[None]:
        """Declare that the caller returns after the block: its thread then runs the next function.

        A function queued within the block needs no other thread. On threads outside the pool this
        has no effect.
        """
        own = self._thread_state
        own.is_ending = threading.current_thread() in self._threads
        try:
            yield
        finally:
            own.is_ending = False

    def close(self, timeout: float) -> bool:
        """Run the queued functions, then stop the threads; return whether all ended in `timeout` s.

        Called from a pool thread, it waits for the rest of the pool. Idempotent.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            if self._due_timer is not None:
                self._due_timer.close()
        until = time.monotonic() + timeout
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(max(until - time.monotonic(), 0))
        return not self._timer_threads.join(max(until - time.monotonic(), 0)) and not any(
            thread.is_alive()
            for thread in self._threads
            if thread is not threading.current_thread()
        )

    def _start_thread(self, act: Callable[[], None]) -> None:
        thread = threading.Thread(target=act, name=f"callbacks of {self._name}", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _run_queue(self) -> None:
        own = self._thread_state
        act = self._take_next()
        while act is not None:
            try:
                act()
            except Exception:
                logger.exception("a callback failed")
            act, own.next_call = own.next_call, None
            if act is None:
                with self._changed:
                    self._progress += 1
                act = self._take_next()

    def _take_next(self) -> Callable[[], object] | None:
        with self._changed:
            self._idle += 1
            while not self._queue and not self._is_closed:
                self._changed.wait()  # endless: until it is closed
            self._idle -= 1
            self._progress += 1
            return self._queue.popleft() if self._queue else None

    def _run_due_calls(self) -> None:
        assert self._due_timer is not None
        while (comm := self._due_timer.next()) is not None:
            act = partial(comm.async_context.run_queue, comm)
            if not self.run_urgent(act):
                act()

    def _watch(self) -> None:
        """Add a thread whenever the pool makes no progress; end when the queue is empty."""
        with self._changed:
            seen = self._progress
            while self._queue:
                # Nothing tells that a thread waits for another.
                self._changed.wait_for(lambda: not self._queue, _STUCK_SECONDS)
                if self._queue and self._progress == seen:
                    self._start_thread(self._run_queue)
                seen = self._progress
            self._is_watched = False
            self._threads.discard(threading.current_thread())
