"""A thread with a dedicated event loop: the place of a worker's I/O."""

import asyncio
import contextlib
import logging
import threading
import time
from asyncio import events
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import uvloop

from allhands.errors import ForkedProcess
from allhands.runtime.borrowed_loop import check_may_wait
from allhands.runtime.callbacks import Callbacks
from allhands.runtime.loop_call import LoopCall
from allhands.runtime.signal_mask import DelayedSignals
from allhands_proto import forks

logger = logging.getLogger(__name__)

T = TypeVar("T")

PARK_SECONDS = 0.002
"""How long the thread leaves the loop alone after it was lent, so that the next to borrow it need
not wait until the thread lets go of it; that takes as long as a small message."""
_ALIVE_SECONDS = 1.0
_CALLBACK_SECONDS = 30.0
_DUE_ITERATIONS = 3
"""Of the loop, in each of which it looks at its sockets, before the thread hands over a loop that
it was due to take: to read what came and to act on it takes more than one."""
MAX_PARK_SECONDS = 0.02
"""How long the loop may do without the thread, however often it is lent; one long call may keep it
for longer."""


def is_closed_loop_wakeup(message: str, error: BaseException | None) -> bool:
    """Return whether a loop's exception is gRPC's poller waking a closed loop.

    The process has a single poller for all loops, and the poller is not notified when a loop
    closes.
    """
    of_poller = "PollerCompletionQueue" in message
    return of_poller and isinstance(error, RuntimeError) and "closed" in str(error)


def _log_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an exception of a callback, except for the poller's wakeups of closed loops."""
    if not is_closed_loop_wakeup(str(context.get("message")), context.get("exception")):
        loop.default_exception_handler(context)


class LoopThread:
    """An event loop on a thread, for coroutines and callbacks of any thread.

    The loop and all objects on it belong to the holder of the loop lock: this thread while it runs
    the loop, or a caller's thread that borrows the loop. So nothing is ever entered twice.
    """

    def __init__(self, name: str) -> None:
        self.loop = uvloop.new_event_loop()
        self.loop.set_exception_handler(_log_exception)
        self.callbacks = Callbacks(name)
        """Threads beside this one, for functions that may wait for what it does."""
        self.loop_lock = threading.Lock()
        self.borrow_lock = threading.Lock()
        """Held by the borrower, so that one thread at a time asks for the loop."""
        self._is_loop_wanted = False
        """Whether a borrower waits for the thread to hand the loop over, through `_handoff`."""
        self._handoff = threading.Lock()
        self._handoff.acquire()
        self._doorbell = threading.Lock()
        self._doorbell.acquire()
        self.is_thread_due = True
        """Whether the thread waits for the loop or has just taken it: it has its turn before others
        borrow the loop."""
        self.is_rung = False
        """Whether the doorbell was rung since the thread took the loop: a long call in the native
        core, which has borrowed it, ends its loan then."""
        self._is_running = False
        """Whether what is called comes to its turn by itself."""
        self._is_letting_go = False
        """Whether the loop is about to stop for a borrower: it is stopped once only, as the next
        turn would end at once by the other stop."""
        self.is_stopping = False
        self._ended = threading.Event()
        """Set once the thread is over. `Thread.is_alive` takes a living one for dead from when a
        handler of a signal has raised in it, up to Python 3.12."""
        self.borrowed_at = 0.0
        self.turns = 0
        """How often the thread took the loop, or a caller's function was run on it, or the native
        core had what it has read passed on or taken back there. The core borrows the loop as
        `run_on_caller_thread` does, by the locks and flags here, and takes it that nothing has
        changed on the loop as long as this is the same."""
        self._generation = forks.generation
        forks.hold(self)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_inherited(self) -> bool:
        """Whether the thread runs in the parent of this forked process."""
        return forks.is_inherited(self._generation)

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for the result; Ctrl-C here cancels the coroutine.

        Raises:
            RuntimeError: called on the loop's own thread, or by a signal's handler within a call
                that has borrowed the loop: either would wait for itself.
            ForkedProcess: the loop belongs to the parent process.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("this would block the thread that does allhands' own I/O")
        try:
            check_may_wait()
            self._check_alive()
        except RuntimeError:
            work.close()
            raise
        call = LoopCall(self.loop, lambda: work)
        try:
            call.submit()
            self.wake()
            return call.wait()
        except BaseException:
            call.cancel()
            self.wake()
            raise

    def call(self, act: Callable[..., object], *arguments: object) -> None:
        """Schedule a function on the loop, in the order of the calls.

        Raises:
            RuntimeError: the thread has ended.
            ForkedProcess: the loop belongs to the parent process.
        """
        self._check_alive()
        self.loop.call_soon_threadsafe(act, *arguments)
        self.wake()

    def run_on_caller_thread(self, act: Callable[[], bool]) -> bool:
        """Run `act` on the calling thread while holding the loop; return whether that was possible.

        `act` must not block, and returns True if it scheduled work of the loop; False lets the next
        caller borrow the loop without waiting for the thread. When this returns False, `act` was
        not called.
        """
        if self.is_thread_due or self.is_inherited or threading.current_thread() is self._thread:
            return False
        return self._borrow(act)

    def take_loop(self) -> bool:
        """Have the thread hand the loop over, after its turn if it is due; return whether it did.

        The native core borrows it then. It takes as long as what the loop has to do at once.
        """
        if self.is_inherited or threading.current_thread() is self._thread:
            return False
        return self._borrow(_do_nothing)

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """Let a block run as if on the loop, which the native core has borrowed on this thread."""
        with DelayedSignals():
            around = events._get_running_loop()
            events._set_running_loop(self.loop)
            try:
                yield
            finally:
                events._set_running_loop(around)

    def delay_signals(self) -> DelayedSignals:
        """Return a block without signal handlers, for the core that has borrowed the loop."""
        return DelayedSignals()

    def stop(self) -> None:
        """End the loop and the thread, once the functions beside it have returned. Idempotent.

        In a forked child it is left as it is: parent and child share what the loop waits on.
        """
        if self.is_inherited:
            return
        if not self.callbacks.close(_CALLBACK_SECONDS):
            logger.warning("went on without functions given to then() that do not return")
        if self._thread.is_alive():
            self.is_stopping = True
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.wake()
            self._thread.join()
            self.loop.close()

    def _borrow(self, act: Callable[[], bool]) -> bool:
        # Nothing of a handler that raises may break into what lives on the loop, or leave it lent.
        with DelayedSignals():
            if not self.borrow_lock.acquire(blocking=False):
                return False
            try:
                return self._run_with_loop(act)
            finally:
                self.borrow_lock.release()

    def _run_with_loop(self, act: Callable[[], bool]) -> bool:
        # A thread that is due has its turn first: it would have none as long as others are quicker.
        is_free = not self.is_thread_due and self.loop_lock.acquire(blocking=False)
        if not (is_free or self._await_handoff()):
            return False
        if self.is_stopping or self._ended.is_set():
            self.loop_lock.release()
            return False
        around = events._get_running_loop()
        events._set_running_loop(self.loop)
        goes_on = True
        self.turns += 1
        try:
            goes_on = act()
        finally:
            events._set_running_loop(around)
            self.borrowed_at = time.monotonic()
            self.loop_lock.release()
            if goes_on:
                self.wake()
        return True

    def _await_handoff(self) -> bool:
        """Wait until the thread hands the loop over; return whether it does."""
        if self.is_stopping or self._ended.is_set():
            return False
        self._is_loop_wanted = True  # first: see _on_loop_taken
        if not self.is_thread_due:
            self._is_running = False  # first: what was called before this comes before the stop
            self.loop.call_soon_threadsafe(self._let_go, 0)
        while not self._handoff.acquire(timeout=_ALIVE_SECONDS):
            if self._ended.is_set():
                return False
        return True

    def wake(self) -> None:
        """Ring the doorbell, so that an idle thread takes the loop as soon as the loop is free."""
        if self._is_running:
            return
        self.is_rung = True
        with contextlib.suppress(RuntimeError):  # it has been rung already
            self._doorbell.release()

    def help_waiting(self, seconds: float) -> bool:
        """Wake the thread for somebody who waits for what it does; as `Work.helped` has it."""
        self.wake()
        return True

    def _check_alive(self) -> None:
        if self.is_inherited:
            raise ForkedProcess
        if self._ended.is_set():
            raise RuntimeError("this process has left its world")

    def _run(self) -> None:
        try:
            self._run_loop()
        finally:
            self._ended.set()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self.is_stopping:
            self.loop_lock.acquire()
            self.turns += 1
            self.loop.call_soon(self._on_loop_taken)
            self.loop.run_forever()
            self._is_running = self._is_letting_go = False
            # Not given back where somebody waits for it: this thread could take it again first.
            if self._is_loop_wanted:
                self._is_loop_wanted = False
                self._handoff.release()
            else:
                self.loop_lock.release()
            self._park(time.monotonic())

    def _on_loop_taken(self) -> None:
        self._is_running = True
        self._doorbell.acquire(blocking=False)  # whoever rang it until now meant this
        self.is_rung = False
        self.is_thread_due = False
        if self._is_loop_wanted:
            self._let_go(_DUE_ITERATIONS)

    def _let_go(self, iterations: int) -> None:
        """Stop the loop after so many iterations, if somebody waits for it then."""
        if not self._is_loop_wanted or self._is_letting_go:
            return
        if iterations > 0:
            self.loop.call_soon(self._let_go, iterations - 1)
        else:
            self._is_letting_go = True
            self._is_running = False
            self.loop.stop()

    def _park(self, since: float) -> None:
        """Wait until the loop is wanted here: it was rung for, or has not been lent for a while."""
        while not self.is_stopping and not self._doorbell.acquire(timeout=PARK_SECONDS):
            now = time.monotonic()
            is_idle = now - self.borrowed_at > PARK_SECONDS and not self.loop_lock.locked()
            if is_idle or now - since > MAX_PARK_SECONDS:
                break
        self.is_thread_due = True


def _do_nothing() -> bool:
    return False
