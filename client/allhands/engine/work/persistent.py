"""A call that is made again and again with the same arguments, which are looked at once."""

from collections.abc import Callable
from typing import Protocol

from allhands.engine.work.work import Work


class PersistentCall(Protocol):
    """A call prepared once and made many times: `start`, then `wait`, then again.

    Every start is a call of the group like any other, in the group's order. Between start and wait
    the array belongs to the call.
    """

    def start(self) -> None:
        """Publish this rank's contribution; blocks only for ranks several calls behind.

        Raises:
            RuntimeError: the call is under way already.
            AllhandsError: the call failed; the array is as its `outputs_intact` says.
        """

    def wait(self) -> bool:
        """Return True when the call has ended well.

        Raises:
            RuntimeError: it was not started.
            AllhandsError: it failed; it may be started again.
        """


class QueuedPersistentCall:
    """A persistent call over the queue: every start makes a new call."""

    def __init__(self, submit: Callable[[], Work]) -> None:
        self._submit = submit
        self._work: Work | None = None

    def start(self) -> None:
        if self._work is not None:
            raise RuntimeError("started already: wait() for it first")
        self._work = self._submit()

    def wait(self) -> bool:
        if self._work is None:
            raise RuntimeError("not started: start() it first")
        work, self._work = self._work, None
        return work.wait()
