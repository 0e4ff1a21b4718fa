"""Posted: an all_reduce whose part was given at once, and which ends where somebody asks for it."""

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from allhands.collectives.signature import Call, Result
from allhands.engine.work import explanations
from allhands.engine.work.work import Work
from allhands.futures import Future
from allhands.runtime.callbacks import Callbacks
from allhands.runtime.signal_mask import Deferred

if TYPE_CHECKING:
    from allhands._native import AllReduceRequest


class Posted(Work):
    """A small call over shared memory of which the others have all that they need from this rank.

    What is left is to take in theirs. Who waits does that on its own thread; whoever asks without
    waiting has it done by a thread of those for callbacks. Else the group's next call does.
    """

    def __init__(
        self,
        call: Call,
        posted: "AllReduceRequest",
        nbytes: int,
        result: Result,
        label: str | None,
        group: str,
        callbacks: Callbacks,
    ) -> None:
        super().__init__(call, posted.sequence, label, group, callbacks)
        self._posted = posted
        self._nbytes = nbytes
        self._result = result
        self._callbacks = callbacks
        self._lock = threading.Lock()
        self._is_taken = False
        """Whether a thread ends it, or has."""
        self._is_asked = False
        """Whether one of those for callbacks was told to."""

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        if timeout is None:
            self._end()
        else:
            self._ask()
        return super().wait(timeout)

    def is_completed(self) -> bool:
        self._ask()
        return super().is_completed()

    def is_success(self) -> bool:
        self._ask()
        return super().is_success()

    def exception(self) -> BaseException | None:
        self._ask()
        return super().exception()

    def get_future(self) -> Future[Result]:
        self._ask()
        return super().get_future()

    def cancel(self) -> None:
        if not super().is_completed():
            super().cancel()
            self._ask()

    # ------------------------------------------------------------ inside

    def _ask(self) -> None:
        """Have it ended, while the caller does something else."""
        if self._callbacks.is_inherited:
            return
        with self._lock:
            if self._is_asked or self._is_taken:
                return
            self._is_asked = True
        if not self._callbacks.carry(self._end):  # the world is over, and so is the call
            self._end()

    def _end(self) -> None:
        """End it on this thread, if no other does."""
        if self._callbacks.is_inherited:
            return  # it is for the parent to end
        with Deferred() as calm:  # only the wait can be broken into: other threads want to know
            with self._lock:
                if self._is_taken:
                    return
                self._is_taken = True
            failure: Exception | None = None
            try:
                with calm.lifted():
                    self._posted.wait()
            except Exception as error:
                failure = error
            except BaseException:  # which ended it, unless it had ended, or another thread ends it
                with self._lock:
                    self._is_taken = self._is_asked = False
                self._ask()
                raise
            with self._callbacks.ending():
                self._settle(failure)

    def _settle(self, failure: Exception | None) -> None:
        if failure is not None:
            self.fail(failure)
            return
        self.explained(explanations.shared((self.sequence, self.operation, self._nbytes, "slots")))
        self.succeed(self._result)
