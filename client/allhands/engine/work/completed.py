"""Completed work: the handle of a call that had ended before its work was made."""

from datetime import timedelta
from typing import TYPE_CHECKING, Self

from allhands.collectives.signature import Result
from allhands.engine.work import explanations
from allhands.engine.work.explanations import CallSummary
from allhands.engine.work.work import INLINE_CALLS, LARGE_BYTES, Work
from allhands.futures import Future

if TYPE_CHECKING:
    from allhands._native import LinkCollectives, ShmComm


class CompletedWork(Work):
    """The cheap work of a call that had succeeded before its work was made."""

    def __init__(self, summary: CallSummary, label: str | None, group: str, result: Result) -> None:
        """Make the work of a call from `ShmComm.last_call`; see `explanations.explain_shm`."""
        self.sequence, self.operation, _, _ = summary
        self.label = label
        self.group = group
        self._summary = summary
        self._result = result
        self._completed_future: Future[Result] | None = None
        self._source = -1

    @classmethod
    def from_comm(
        cls,
        comm: "ShmComm | LinkCollectives",
        label: str | None,
        group: str,
        result: Result,
    ) -> Self:
        """Make the work of the latest call of a communicator, or of links."""
        last = comm.last_call()
        assert last is not None, "it has just ended"
        return cls(last, label, group, result)

    @property
    def has_ended(self) -> bool:
        return True

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> Result:
        return self._result

    def get_future(self) -> Future[Result]:
        if self._completed_future is None:
            future: Future[Result] = Future()
            future.set_result(self._result)
            self._completed_future = future
        return self._completed_future

    def explain(self) -> str:
        return explanations.explain_shm(self._summary)

    def cancel(self) -> None:
        """Do nothing: the call has ended."""

    def abandon(self, why: str = "Ctrl-C") -> None:
        """Do nothing: the call has ended."""

    def _try_complete(self, seconds: float) -> bool:
        return True

    def _owes_turn(self) -> bool:
        sequence, _, nbytes, _ = self._summary
        return nbytes >= LARGE_BYTES or sequence % INLINE_CALLS == 0


class CompletedSend(CompletedWork):
    """A message sent before its work was made."""

    def __init__(
        self, nbytes: int, label: str | None, group: str, result: Result, path: str | None
    ) -> None:
        """`path` is that over shared memory; None: it went over links."""
        super().__init__((0, "send", nbytes, path or ""), label, group, result)

    def explain(self) -> str:
        _, operation, nbytes, path = self._summary
        return explanations.explain_shm_p2p(operation, nbytes, path) if path else ""
