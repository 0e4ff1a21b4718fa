"""Work: the caller's handle of an operation that runs elsewhere."""

import contextlib
import math
import time
from collections.abc import Callable
from datetime import timedelta
from types import CodeType
from typing import Any

from allhands.collectives.signature import CallSignature, Result
from allhands.collectives.staging import Staging
from allhands.errors import CollectiveTimeout
from allhands.futures import Future
from allhands.recorder.ring_buffer import OperationEntry
from allhands.runtime.callbacks import Callbacks
from allhands.tracebacks import trim_traceback

ABANDON_SECONDS = 1.0
INLINE_CALLS = 16
"""Calls awaited one after the other that may end at once, before the loop has its turn."""
LARGE_BYTES = 64 << 10
"""What a call moves that takes so long that the loop has its turn after it alone."""
_SIGNAL_POLL_SECONDS = 0.2
"""A signal that comes in the instant before a thread begins to wait is seen after this long."""


class Work:
    """An operation in flight on a group; safe from any thread.

    Until it is completed the arrays given to the operation belong to it: neither read the outputs
    nor write the inputs. The work keeps them alive.
    """

    staging: Staging | None = None
    """Copies that are stored in the caller's arrays when the operation ends well."""

    def __init__(
        self,
        call: CallSignature,
        sequence: int,
        label: str | None,
        group: str,
        callbacks: Callbacks | None = None,
    ) -> None:
        """Make the work of a call; `callbacks` runs the functions that wait for its end."""
        self.operation = call.operation
        self.sequence = sequence
        """Number of the call on its group; 0 point to point."""
        self.label = label
        self.group = group
        self._future: Future[Result] = Future(callbacks)
        # From here on only the engine ends it: cancelling the future alone would leave the call.
        self._future.set_running_or_notify_cancel()
        self._cancel: Callable[[], None] = _do_nothing
        self._progress: Callable[[float], bool] | None = None
        self._runner: Callable[[], None] | None = None
        self._source = -1
        self.cancel_reason = "cancelled"
        """Reason sent to the other ranks if this rank gives the operation up."""
        self._explanation = ""
        self.waiting_thread = 0
        """The thread that made the call to wait for it at once; 0: it may do something else."""
        self.entry: OperationEntry | None = None
        """What the recorder knows of it, unless that is known where it was carried out."""

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Block until the operation has ended; return True.

        Without `timeout` this thread may carry it out: then Ctrl-C here ends it, and the other
        ranks are told so.

        Args:
            timeout: seconds to wait here; the operation's own deadline holds in any case.

        Raises:
            CollectiveTimeout: it has not ended within `timeout`; it goes on.
            ForkedProcess: it is under way in the process that this one was forked from.
            AllhandsError: it failed; what the error says.
        """
        try:
            self._future.check_inherited()
            seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
            until = math.inf if seconds is None else time.monotonic() + seconds
            runner = self._runner
            if seconds is None and runner is not None and not self._future.done():
                runner()
            while not self._wait_for_end(min(until - time.monotonic(), _SIGNAL_POLL_SECONDS)):
                if time.monotonic() >= until:
                    raise CollectiveTimeout(
                        f"{self} has not ended within {seconds} s; "
                        "it goes on until its own deadline",
                        op=self.operation,
                        seq=self.sequence,
                        label=self.label,
                    )
            self._future.result()
            return True
        except Exception as error:
            trim_traceback(error)
            raise

    def _set_call_site(self, code: CodeType | None, instruction: int, /) -> None:
        """Record where the program made the call, if another thread began it."""
        if self.entry is not None:
            self.entry.set_source((code, instruction))

    @property
    def has_ended(self) -> bool:
        """Whether the operation has ended, as far as is known without asking anybody."""
        return self._future.done()

    def is_completed(self) -> bool:
        """Say whether the operation has ended, well or not."""
        return self._try_complete(0.0)

    def is_success(self) -> bool:
        """Say whether the operation has ended well."""
        return self._future.done() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Return the operation's error; None while it runs and after success."""
        if not self._future.done():
            return None
        return self._future.exception()

    def result(self) -> Any:
        """Wait, then return the output: an array, a list of arrays, or None."""
        try:
            self.wait()
            return self._future.result()
        except Exception as error:
            trim_traceback(error)
            raise

    def synchronize(self) -> None:
        """Block until the operation has ended, like `wait`."""
        self.result()

    def get_future(self) -> Future[Result]:
        """Return the future behind this work; its result is `result()`.

        Only the operation completes it; `cancel` the work to end it early.
        """
        self._try_complete(0.0)
        return self._future

    def source_rank(self) -> int:
        """Return the group rank of a completed receive's sender.

        Raises:
            ValueError: the receive is not complete, or the work is of no receive.
        """
        if self._source < 0:
            raise ValueError(f"{self} has received nothing yet")
        return self._source

    def explain(self) -> str:
        """Say how a completed operation was carried out, and why so; "" where nothing is known."""
        return self._explanation

    def cancel(self) -> None:
        """Ask the operation to end early; a no-op when it has ended.

        Other ranks get `GroupAborted` for it: at once where they are in it, else when they come to
        it; but who finds all that it needs of others there already may end it well.
        """
        self._cancel()

    def abandon(self, why: str = "Ctrl-C") -> None:
        """End the operation early and wait until its arrays are the caller's again."""
        self.cancel_reason = why
        self.cancel()
        # That takes one turn of its loop.
        with contextlib.suppress(Exception):
            self._future.exception(timeout=ABANDON_SECONDS)

    def _try_complete(self, seconds: float) -> bool:
        """Carry the operation out here if it ends within `seconds`; return whether it has ended.

        False also where that is not possible.
        """
        progress = self._progress
        if progress is not None and not self._future.done():
            progress(seconds)
        return self._future.done()

    def _owes_turn(self) -> bool:
        """Say whether a loop should have its turn after so many operations that ended at once."""
        return True

    def __repr__(self) -> str:
        name = f"{self.operation} #{self.sequence} of group {self.group!r}"
        return f"{name} ({self.label})" if self.label else name

    def _wait_for_end(self, seconds: float) -> bool:
        """Wait up to `seconds` for the end; return whether it came."""
        if self._future.done():
            return True
        begun, progress = time.monotonic(), self._progress
        if progress is not None and not progress(max(seconds, 0)):
            return False
        with contextlib.suppress(TimeoutError):
            self._future.exception(max(begun + seconds - time.monotonic(), 0))
        return self._future.done()

    # ------------------------------------------------------------ for the engine

    def own(self, cancel: Callable[[], None]) -> None:
        """Say how this work is cancelled."""
        self._cancel = cancel
        self._let_go_if_ended()

    def helped(self, carry_on: Callable[[float], bool]) -> None:
        """Set the function by which a waiting thread progresses the operation for some seconds."""
        self._progress = carry_on
        self._let_go_if_ended()

    def carried(self, carry: Callable[[], None]) -> None:
        """Set the function by which a thread waiting without limit runs a call not yet begun."""
        self._runner = carry
        self._let_go_if_ended()

    def explained(self, text: str) -> None:
        self._explanation = text

    def received_from(self, rank: int) -> None:
        self._source = rank

    def succeed(self, result: Result) -> None:
        if self.staging is not None:
            try:
                self.staging.store()
            except Exception as error:  # an array that may no longer be written
                self.fail(error)
                return
        self._record_end(None)
        if not self._future.done():
            self._future.set_result(result)
        self._let_go()

    def fail(self, error: BaseException) -> None:
        if self.staging is not None:
            self.staging.note_failure(error)
        self._record_end(error)
        if not self._future.done():
            self._future.set_exception(error)
        self._let_go()

    def _let_go_if_ended(self) -> None:
        if self._future.done():
            self._let_go()

    def _let_go(self) -> None:
        """Keep nothing of an operation that has ended: its arrays would live until a collection.

        The operation has its work, whose functions have the operation.
        """
        self._cancel, self._progress, self._runner = _do_nothing, None, None

    def _record_end(self, error: BaseException | None) -> None:
        if self.entry is not None:
            self.entry.end(error, self._explanation)


def _do_nothing() -> None:
    pass
