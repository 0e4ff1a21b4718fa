"""Work of a call over shared memory that nobody waits for yet: an entry of the core's queue."""

import contextlib
from collections.abc import Callable
from concurrent.futures import InvalidStateError
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from allhands._native import AsyncCall
from allhands.collectives.core_call import Reading
from allhands.collectives.signature import Result
from allhands.engine.work import explanations
from allhands.engine.work.work import ABANDON_SECONDS, INLINE_CALLS, LARGE_BYTES, Work
from allhands.errors import AllhandsError
from allhands.futures import Future
from allhands.runtime.callbacks import Callbacks
from allhands.runtime.signal_mask import DelayedSignals
from allhands.tracebacks import trim_traceback

if TYPE_CHECKING:
    from allhands._native import ShmComm


class ShmWorkContext:
    """Surroundings of the works of one group over shared memory; safe from any thread."""

    def __init__(
        self,
        name: str,
        callbacks: Callbacks,
        cancel: Callable[["ShmWork"], None],
        on_skipped: Callable[[int], None],
    ) -> None:
        """`on_skipped` is called with the number of each call cancelled before its turn."""
        self.name = name
        self.callbacks = callbacks
        self.cancel = cancel
        self.on_skipped = on_skipped
        self._inline_count = 0

    def count_inline(self) -> bool:
        """Count a call that ended while it held a loop; return whether those are many."""
        self._inline_count += 1
        return self._inline_count % INLINE_CALLS == 0

    def hand_over(self, comm: "ShmComm") -> None:
        """Have a callback thread run the queued calls, unless it was told."""
        if not comm.hand_over():
            return
        if not self.callbacks.run_urgent(partial(self.run_queue, comm)):
            self.run_queue(comm)  # the world is over, and so are the calls

    def run_queue(self, comm: "ShmComm") -> None:
        """Run the queued calls, until another thread does or this one has something else to do."""
        try:
            while (call := comm.run_next()) is not None:
                if call.future is None:
                    continue
                if comm.has_queued:
                    call.complete_future()
                    continue
                with self.callbacks.mark_ending():
                    call.complete_future()
                return  # what follows has this thread; calls that came since have another
        finally:
            comm.take_back()


class ShmWork(AsyncCall, Work):
    """An entry of the queue of a communicator.

    Who waits runs it and those before it, on its own thread; asking without waiting lets a
    callback thread do so, as does time.
    """

    cancel_reason = "cancelled"
    entry = None
    _progress = None
    _runner = None
    _source = -1
    context: ShmWorkContext

    def wait_at_most(self, timeout: float | timedelta) -> bool:
        """Wait as `wait` does, at most for `timeout`; another thread runs the call."""
        self._ask()
        return Work.wait(self, timeout)

    def wait_for_thread(self) -> bool:
        """Wait as `wait` does; another thread runs the call, or refuses it."""
        self._ask()
        return Work.wait(self)

    def is_completed(self) -> bool:
        return self._ask()

    def is_success(self) -> bool:
        return self._ask() and self._get_error() is None

    def exception(self) -> BaseException | None:
        return self._get_error() if self._ask() else None

    def result(self) -> Result:
        try:
            self.wait()
        except Exception as error:
            trim_traceback(error)
            raise
        return self._get_result()

    def get_future(self) -> Future[Result]:
        future = self._make_future()
        self._ask()
        return future

    def explain(self) -> str:
        summary = self.summary()
        return "" if summary is None else explanations.explain_shm(summary)

    def cancel(self) -> None:
        if not self.has_ended:
            self.leave()
            self.context.cancel(self)
            self._ask()

    def abandon(self, why: str = "Ctrl-C") -> None:
        self.cancel_reason = why
        self.cancel()
        with contextlib.suppress(Exception):
            self.get_future().exception(timeout=ABANDON_SECONDS)

    def _try_complete(self, seconds: float) -> bool:
        return self.poll(int(seconds * 1e9))

    def _owes_turn(self) -> bool:
        return self.nbytes >= LARGE_BYTES or self.context.count_inline()

    # ------------------------------------------------------------ for the engine

    def refuse(self, error: AllhandsError) -> bool:
        """End the call before its turn; False: its turn has come."""
        if not self.withdraw(error):
            return False
        self.complete_future()
        return True

    def complete_future(self) -> None:
        """Complete the future of the ended call, if somebody has it; once."""
        future: Future[Result] | None = self.future
        if future is None:
            return
        error = self._get_error()
        # Nobody may be left waiting: what a handler raises comes afterwards.
        with DelayedSignals(), contextlib.suppress(InvalidStateError):
            if error is None:
                future.set_result(self._get_result())
            else:
                future.set_exception(error)

    @property
    def writes(self) -> bool:
        """Whether the call writes its caller's arrays."""
        return self.value is not None

    # ------------------------------------------------------------ inside

    def _get_error(self) -> BaseException | None:
        """Return the error of the ended call."""
        return self.error

    def _get_result(self) -> Result:
        """Return the result of the call that has ended well."""
        return self.value

    @property
    def _future(self) -> Future[Result]:  # type: ignore[override]
        return self._make_future()

    def _make_future(self) -> Future[Result]:
        if (found := self.future) is not None:
            return found
        made: Future[Result] = Future(self.context.callbacks)
        made.set_running_or_notify_cancel()
        found = self.attach(made)
        if found is made and self.has_ended:
            self.complete_future()
        return found

    def _ask(self) -> bool:
        """Say whether the call has ended; if not, let another thread run it."""
        if self.poll(0):
            return True
        if not self.context.callbacks.is_inherited:
            self.context.hand_over(self.comm)
        return self.has_ended


class ShmReadWork(ShmWork):
    """An entry whose result is made of what has come, once somebody asks for it."""

    value: Reading

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        super().wait(timeout)
        if (error := self._get_error()) is not None:
            raise error
        return True

    @property
    def writes(self) -> bool:
        return False

    def _get_error(self) -> BaseException | None:
        if self.error is not None:
            return self.error
        self.value.finish(self)
        return self.value.error

    def _get_result(self) -> Result:
        self.value.finish(self)
        return self.value.result
