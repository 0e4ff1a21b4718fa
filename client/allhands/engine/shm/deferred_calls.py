"""Backlog: a group's calls over shared memory that were not waited for at once.

They need nothing of the loop. Whoever waits for one carries out those up to it, on its own thread;
where nobody does, a thread of those for callbacks has been woken for it. So a call that is waited
for soon costs no other thread, and what follows one that is not waited for runs on the thread that
carried it out (leaders and followers: Schmidt et al., 2000).
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from allhands.collectives.request import CollectiveRequest
from allhands.collectives.signature import Result
from allhands.engine.group_recorder import GroupRecorder
from allhands.engine.numbering import CallNumbering
from allhands.engine.work import explanations
from allhands.engine.work.work import Work
from allhands.errors import AllhandsError
from allhands.runtime.callbacks import Callbacks
from allhands.runtime.signal_mask import DelayedSignals

if TYPE_CHECKING:
    from allhands._native import ShmComm

logger = logging.getLogger(__name__)


class PendingCall(Protocol):
    """A numbered call before its turn."""

    @property
    def work(self) -> Work: ...
    @property
    def request(self) -> CollectiveRequest: ...
    @property
    def result(self) -> Result: ...
    @property
    def timeout(self) -> float: ...
    @property
    def deadline(self) -> float: ...

    is_cancelled: bool


class DeferredCalls:
    """The numbered calls that need only the communicator; safe from any thread.

    All of them come before the calls queued on the loop.
    """

    def __init__(
        self,
        callbacks: Callbacks,
        order: CallNumbering,
        recorder: GroupRecorder,
        on_skipped: Callable[[int], None],
    ) -> None:
        """`on_skipped` is called with the number of each call cancelled before its turn."""
        self._callbacks = callbacks
        self._order = order
        self._recorder = recorder
        self._on_skipped = on_skipped
        self._changed = threading.Condition()
        self._waiting: deque[PendingCall] = deque()
        self._running: PendingCall | None = None
        self._is_wakeup_due = False
        """Whether a thread was told to carry on, and has not begun."""

    @property
    def is_empty(self) -> bool:
        return not self._waiting and self._running is None

    def add(self, call: PendingCall) -> bool:
        """Take a call whose number was just taken, with the order's lock held.

        False: others that are not over go before it which are not here, or it is too late.
        """
        if not self._order.has_only_deferred():
            return False
        with self._changed:
            self._waiting.append(call)
            if not self._wake_thread():
                self._waiting.pop()
                return False
            self._order.deferred_count += 1
        call.work.carried(lambda: self._run_up_to(call))
        return True

    def withdraw(self, call: PendingCall) -> bool:
        """Remove a call, unless its turn has come; return whether it was removed."""
        with self._changed:
            if call not in self._waiting:
                return False
            call.is_cancelled = True
            return True

    def is_running(self, call: PendingCall) -> bool:
        """Return whether a call is running."""
        return call is self._running

    def drain(self) -> None:
        """Return when every call taken so far has ended."""
        with DelayedSignals() as calm:
            while True:
                with self._changed:
                    while self._running is not None:
                        self._changed.wait()  # endless: as long as the call, which has a deadline
                    if (call := self._take_next()) is None:
                        return
                self._run_and_complete(call, calm)

    # ------------------------------------------------------------ inside

    def _run_up_to(self, call: PendingCall) -> None:
        """Run calls up to this call on its waiting thread, unless another thread runs them."""
        with DelayedSignals() as calm:
            while not call.work.is_completed():
                with self._changed:
                    if (first := self._take_next()) is None:
                        return
                try:
                    self._run_and_complete(first, calm)
                finally:  # this thread has something else to do
                    with self._changed:
                        self._wake_thread()

    def _run_waiting(self) -> None:
        """Run the waiting calls, unless another thread runs them."""
        with self._changed:
            self._is_wakeup_due = False
        with DelayedSignals() as calm:
            while True:
                with self._changed:
                    if (call := self._take_next()) is None:
                        return
                if not self._run_and_complete(call, calm):
                    return  # what follows has this thread; calls that came since have another

    def _take_next(self) -> PendingCall | None:
        """Begin the turn of the next call; None: there is none, or another one runs."""
        if self._running is not None or not self._waiting:
            return None
        self._running = self._waiting.popleft()
        return self._running

    def _wake_thread(self) -> bool:
        """Have a callback thread run the waiting calls; False: no thread will."""
        if self._waiting and self._running is None and not self._is_wakeup_due:
            self._is_wakeup_due = self._callbacks.run_urgent(self._run_waiting)
            return self._is_wakeup_due
        return True

    def _run_and_complete(self, call: PendingCall, signals: DelayedSignals) -> bool:
        """Run the current call and complete its work; return whether calls were waiting then.

        A signal handler can interrupt only the call itself: the queue must be consistent for other
        threads.

        Raises:
            BaseException: raised by a signal handler meanwhile.
        """
        error: BaseException | None = None
        comm, sequence = self._order.comm, call.work.sequence
        assert comm is not None, "a communicator lasts as long as there are calls"
        try:
            with signals.allow():
                if call.is_cancelled:
                    self._on_skipped(sequence)
                    comm.skip(sequence)
                else:
                    self._run(comm, call)
        except Exception as raised:
            error = raised
        except BaseException as raised:
            begun, _, completed, *_ = comm.progress()
            if begun < sequence:
                self._requeue(call)
                raise
            if completed < sequence:  # the others know of it already
                error = AllhandsError(f"{call.work!r} was given up by this rank: {raised!r}")
            self._end_turn(call, error)
            raise
        return self._end_turn(call, error)

    def _requeue(self, call: PendingCall) -> None:
        """Return a call that has not begun to the queue."""
        with self._changed:
            self._running = None
            self._waiting.appendleft(call)
            self._changed.notify_all()

    def _end_turn(self, call: PendingCall, error: BaseException | None) -> bool:
        """End the turn of a call and complete its work; return whether calls were waiting then."""
        self._order.release(is_deferred=True)
        with self._changed:
            self._running = None
            is_last = not self._waiting
            self._changed.notify_all()
        if is_last:
            with self._callbacks.mark_ending():
                self._complete(call, error)
        else:
            self._complete(call, error)
        return not is_last

    def _run(self, comm: "ShmComm", call: PendingCall) -> None:
        work = call.work
        self._recorder.record_start(work.entry)
        call.request.run(comm, work.sequence, call.timeout, call.deadline, work.label)
        last = comm.last_call()
        assert last is not None, "it has just ended"
        work.explained(explanations.explain_shm(last))

    def _complete(self, call: PendingCall, error: BaseException | None) -> None:
        if call.is_cancelled:
            return  # it was told so when it was cancelled
        if error is None:
            call.work.succeed(call.result)
        else:
            logger.debug("%s failed: %s", call.work, error)
            call.work.fail(error)
