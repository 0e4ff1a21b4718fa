"""Split-phase all_reduce: this rank's contribution is published at once, the result read later."""

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from allhands.collectives.signature import CallSignature, Result
from allhands.engine.work import explanations
from allhands.engine.work.work import Work
from allhands.futures import Future
from allhands.runtime.callbacks import Callbacks
from allhands.runtime.signal_mask import DelayedSignals

if TYPE_CHECKING:
    from allhands._native import AllReduceRequest


class SplitPhaseWork(Work):
    """A small all_reduce over shared memory with this rank's contribution published.

    Completing it reads the peers' contributions: on the waiting thread, on a callback thread if the
    program asks without waiting, else within the group's next call.
    """

    def __init__(
        self,
        call: CallSignature,
        persistent: "AllReduceRequest",
        nbytes: int,
        result: Result,
        label: str | None,
        group: str,
        callbacks: Callbacks,
    ) -> None:
        super().__init__(call, persistent.sequence, label, group, callbacks)
        self._persistent = persistent
        self._nbytes = nbytes
        self._result = result
        self._callbacks = callbacks
        self._lock = threading.Lock()
        self._is_completing = False
        """Whether a thread ends it, or has."""
        self._is_scheduled = False
        """Whether one of those for callbacks was told to."""

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        if timeout is None:
            self._complete_inline()
        else:
            self._schedule_completion()
        return super().wait(timeout)

    def is_completed(self) -> bool:
        self._schedule_completion()
        return super().is_completed()

    def is_success(self) -> bool:
        self._schedule_completion()
        return super().is_success()

    def exception(self) -> BaseException | None:
        self._schedule_completion()
        return super().exception()

    def get_future(self) -> Future[Result]:
        self._schedule_completion()
        return super().get_future()

    def cancel(self) -> None:
        if not super().is_completed():
            super().cancel()
            self._schedule_completion()

    # ------------------------------------------------------------ inside

    def _schedule_completion(self) -> None:
        """Have a callback thread complete the work."""
        if self._callbacks.is_inherited:
            return
        with self._lock:
            if self._is_scheduled or self._is_completing:
                return
            self._is_scheduled = True
        if not self._callbacks.run_urgent(
            self._complete_inline
        ):  # the world is over, and so is the call
            self._complete_inline()

    def _complete_inline(self) -> None:
        """Complete the work on this thread, unless another thread does."""
        if self._callbacks.is_inherited:
            return  # it is for the parent to end
        with (
            DelayedSignals() as calm
        ):  # only the wait can be broken into: other threads want to know
            with self._lock:
                if self._is_completing:
                    return
                self._is_completing = True
            failure: Exception | None = None
            try:
                with calm.allow():
                    self._persistent.wait()
            except Exception as error:
                failure = error
            except BaseException:  # which ended it, unless it had ended, or another thread ends it
                with self._lock:
                    self._is_completing = self._is_scheduled = False
                self._schedule_completion()
                raise
            with self._callbacks.mark_ending():
                self._complete(failure)

    def _complete(self, failure: Exception | None) -> None:
        if failure is not None:
            self.fail(failure)
            return
        self.explained(
            explanations.explain_shm((self.sequence, self.operation, self._nbytes, "slots"))
        )
        self.succeed(self._result)
