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

from allhands.collectives.request import Native
from allhands.collectives.signature import Result
from allhands.engine.group_recorder import Recording
from allhands.engine.numbering import Order
from allhands.engine.work import explanations
from allhands.engine.work.work import Work
from allhands.errors import AllhandsError
from allhands.runtime.callbacks import Callbacks
from allhands.runtime.signal_mask import Deferred

if TYPE_CHECKING:
    from allhands._native import ShmComm

logger = logging.getLogger(__name__)


class Pending(Protocol):
    """A call that has its number and waits for its turn."""

    @property
    def work(self) -> Work: ...
    @property
    def native(self) -> Native: ...
    @property
    def result(self) -> Result: ...
    @property
    def timeout(self) -> float: ...
    @property
    def deadline(self) -> float: ...

    cancelled: bool


class Backlog:
    """The calls that have their numbers and need only the communicator; safe from any thread.

    All of them come before what is queued on the loop.
    """

    def __init__(
        self,
        callbacks: Callbacks,
        order: Order,
        recording: Recording,
        skipped: Callable[[int], None],
    ) -> None:
        """`skipped` hears the numbers of calls that were cancelled before their turn."""
        self._callbacks = callbacks
        self._order = order
        self._recording = recording
        self._skipped = skipped
        self._changed = threading.Condition()
        self._waiting: deque[Pending] = deque()
        self._running: Pending | None = None
        self._is_due = False
        """Whether a thread was told to carry on, and has not begun."""

    @property
    def is_empty(self) -> bool:
        return not self._waiting and self._running is None

    def add(self, call: Pending) -> bool:
        """Take a call whose number was just taken, with the order's lock held.

        False: others that are not over go before it which are not here, or it is too late.
        """
        if not self._order.has_only_backlog():
            return False
        with self._changed:
            self._waiting.append(call)
            if not self._tell_somebody():
                self._waiting.pop()
                return False
            self._order.backlogged += 1
        call.work.carried(lambda: self._carry_up_to(call))
        return True

    def withdraw(self, call: Pending) -> bool:
        """Leave a call out, if its turn has not come."""
        with self._changed:
            if call not in self._waiting:
                return False
            call.cancelled = True
            return True

    def runs(self, call: Pending) -> bool:
        """Say whether a call has its turn."""
        return call is self._running

    def drain(self) -> None:
        """Return when every call taken so far has ended."""
        with Deferred() as calm:
            while True:
                with self._changed:
                    while self._running is not None:
                        self._changed.wait()  # endless: as long as the call, which has a deadline
                    if (call := self._next()) is None:
                        return
                self._carry_out(call, calm)

    # ------------------------------------------------------------ inside

    def _carry_up_to(self, call: Pending) -> None:
        """Carry out calls up to this one, on the thread that waits for it; if no other does."""
        with Deferred() as calm:
            while not call.work.is_completed():
                with self._changed:
                    if (first := self._next()) is None:
                        return
                try:
                    self._carry_out(first, calm)
                finally:  # this thread has something else to do
                    with self._changed:
                        self._tell_somebody()

    def _carry_on(self) -> None:
        """Carry out the calls that wait, if no other thread does."""
        with self._changed:
            self._is_due = False
        with Deferred() as calm:
            while True:
                with self._changed:
                    if (call := self._next()) is None:
                        return
                if not self._carry_out(call, calm):
                    return  # what follows has this thread; calls that came since have another

    def _next(self) -> Pending | None:
        """Begin the turn of the next call; None: there is none, or another one runs."""
        if self._running is not None or not self._waiting:
            return None
        self._running = self._waiting.popleft()
        return self._running

    def _tell_somebody(self) -> bool:
        """See to it that what waits is carried out; False: nobody will any more."""
        if self._waiting and self._running is None and not self._is_due:
            self._is_due = self._callbacks.carry(self._carry_on)
            return self._is_due
        return True

    def _carry_out(self, call: Pending, calm: Deferred) -> bool:
        """Carry out the call that runs, and settle its work; say whether others waited then.

        Only the call itself can be broken into: what is kept here must be whole for other threads.

        Raises:
            BaseException: what a signal handler raised meanwhile.
        """
        error: BaseException | None = None
        comm, sequence = self._order.comm, call.work.sequence
        assert comm is not None, "a communicator lasts as long as there are calls"
        try:
            with calm.lifted():
                if call.cancelled:
                    self._skipped(sequence)
                    comm.skip(sequence)
                else:
                    self._run(comm, call)
        except Exception as raised:
            error = raised
        except BaseException as raised:
            begun, _, completed, *_ = comm.progress()
            if begun < sequence:
                self._take_back(call)
                raise
            if completed < sequence:  # the others know of it already
                error = AllhandsError(f"{call.work!r} was given up by this rank: {raised!r}")
            self._end(call, error)
            raise
        return self._end(call, error)

    def _take_back(self, call: Pending) -> None:
        """Let a call wait again that has not begun."""
        with self._changed:
            self._running = None
            self._waiting.appendleft(call)
            self._changed.notify_all()

    def _end(self, call: Pending, error: BaseException | None) -> bool:
        """End the turn of a call, and settle its work; say whether others waited then."""
        self._order.give_back(backlogged=True)
        with self._changed:
            self._running = None
            is_last = not self._waiting
            self._changed.notify_all()
        if is_last:
            with self._callbacks.ending():
                self._settle(call, error)
        else:
            self._settle(call, error)
        return not is_last

    def _run(self, comm: "ShmComm", call: Pending) -> None:
        work = call.work
        self._recording.began(work.entry)
        call.native.run(comm, work.sequence, call.timeout, call.deadline, work.label)
        last = comm.last_call()
        assert last is not None, "it has just ended"
        work.explained(explanations.shared(last))

    def _settle(self, call: Pending, error: BaseException | None) -> None:
        if call.cancelled:
            return  # it was told so when it was cancelled
        if error is None:
            call.work.succeed(call.result)
        else:
            logger.debug("%s failed: %s", call.work, error)
            call.work.fail(error)
