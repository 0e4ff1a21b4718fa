"""Works that report the first look of the program at a change of the group."""

from collections.abc import Callable

from allhands.collectives.signature import CallSignature, Result
from allhands.engine.work.work import Work
from allhands.errors import MembershipChanged
from allhands.futures import Future
from allhands.runtime.callbacks import Callbacks

SeeChange = Callable[[MembershipChanged], None]


class ObservedWork(Work):
    """Work whose future reports that the program has got its `MembershipChanged`."""

    def __init__(
        self,
        call: CallSignature,
        sequence: int,
        label: str | None,
        group: str,
        callbacks: Callbacks,
        see: SeeChange,
    ) -> None:
        super().__init__(call, sequence, label, group)
        self._future = _ObservedFuture(callbacks, see)
        self._future.set_running_or_notify_cancel()


class _ObservedFuture(Future[Result]):
    def __init__(self, callbacks: Callbacks, see: SeeChange) -> None:
        super().__init__(callbacks)
        self._see = see

    def result(self, timeout: float | None = None) -> Result:
        try:
            return super().result(timeout)
        except MembershipChanged as change:
            self._see(change)
            raise

    def exception(self, timeout: float | None = None) -> BaseException | None:
        error = super().exception(timeout)
        if isinstance(error, MembershipChanged):
            self._see(error)
        return error
