"""What a launch does about what happens to its ranks: events in, orders out.

Pure: signals are sent, time passes and messages are shown elsewhere; see `launch`. The first
thing that goes wrong decides the outcome, whatever comes after it.
"""

import signal
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class RankEnding:
    """A rank is about to end; of ranks that fail, the one that began to end first is to blame."""

    rank: int
    failing: bool
    """Whether an exception ends it; else it may end well or not."""


@dataclass(frozen=True, slots=True)
class RankEnded:
    rank: int
    status: int
    """Exit status; -n: killed by signal n."""


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """The launcher itself was asked to end."""

    signum: int


@dataclass(frozen=True, slots=True)
class Broken:
    """The launch cannot go on: a rank could not be started, or its output has nowhere to go."""

    reason: str


@dataclass(frozen=True, slots=True)
class PatienceOver:
    """The seconds of the latest `Wait` have passed."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A rank failed: the first of the suspects whose status turns out to be bad.

    They had begun to end by then, in that order.
    """

    suspects: tuple[int, ...]


Trouble: TypeAlias = Failure | SignalReceived | Broken
Event: TypeAlias = RankEnding | RankEnded | SignalReceived | Broken | PatienceOver


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a signal to every rank that still runs, and to its children; but not to `spare`."""

    signum: int
    spare: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """Come back with `PatienceOver` after so many seconds; replaces an earlier wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Abandon:
    """Go without waiting for what is left: output that nobody reads, or an unkillable rank."""


Order: TypeAlias = Tell | Wait | Abandon

INTERRUPT_SECONDS = 2.0
GRACE_SECONDS = 1.5
LAST_SECONDS = 1.0

_AT_ONCE: tuple[Order, ...] = (Tell(signal.SIGKILL), Wait(LAST_SECONDS), Abandon())
_TERMINATED: tuple[Order, ...] = (Tell(signal.SIGTERM), Wait(GRACE_SECONDS), *_AT_ONCE)
_INTERRUPTED: tuple[Order, ...] = (Tell(signal.SIGINT), Wait(INTERRUPT_SECONDS), *_TERMINATED)


def _after_failure(suspects: tuple[int, ...]) -> tuple[Order, ...]:
    return (
        # What ends a suspect shall be its own failure.
        Tell(signal.SIGTERM, spare=suspects),
        Wait(GRACE_SECONDS),
        Tell(signal.SIGKILL),
        # No `Abandon`: a slow reader gets all of the output, above all the reason of the failure.
    )


class Supervisor:
    """Decides when the ranks are told to end, and what the launch came to."""

    def __init__(self, count: int = 0, least: int = 0) -> None:
        """Supervise `count` ranks; with a `least`, others may fail while so many run or end well.

        Then a rank that fails is no trouble by itself.
        """
        self._count = count
        self._least = least
        self.trouble: Trouble | None = None
        """What went wrong first; None as long as nothing has."""
        self._ending: list[int] = []
        self._statuses: dict[int, int] = {}
        self._kills = False
        self._pending: tuple[Order, ...] = ()

    def handle(self, event: Event) -> tuple[Order, ...]:
        """Take note of an event; return what is to be done about it now, in order."""
        match event:
            case RankEnding(rank, failing):
                if rank not in self._ending:
                    self._ending.append(rank)
                return self._fail() if failing and not self._least else ()
            case RankEnded(rank, status):
                if not self._kills:
                    self._statuses[rank] = status
                if rank not in self._ending:
                    self._ending.append(rank)
                return self._fail() if status != 0 and not self._is_borne() else ()
            case Broken():
                return self._end(event, _after_failure(()))
            case SignalReceived() if self.trouble is not None:
                return self._until_wait(_AT_ONCE)  # somebody has lost patience
            case SignalReceived(signal.SIGINT):
                return self._end(event, _INTERRUPTED)
            case SignalReceived():
                return self._end(event, _TERMINATED)
            case PatienceOver():
                return self._until_wait(self._pending)

    def _is_borne(self) -> bool:
        """Whether enough ranks are left that the others' failing is no trouble."""
        failed = sum(status != 0 for status in self._statuses.values())
        return self._least > 0 and self._count - failed >= self._least

    def _fail(self) -> tuple[Order, ...]:
        suspects = tuple(rank for rank in self._ending if self._statuses.get(rank) != 0)
        return self._end(Failure(suspects), _after_failure(suspects))

    def _end(self, trouble: Trouble, orders: tuple[Order, ...]) -> tuple[Order, ...]:
        if self.trouble is not None:
            return ()
        self.trouble = trouble
        return self._until_wait(orders)

    def _until_wait(self, orders: tuple[Order, ...]) -> tuple[Order, ...]:
        """Split off what is due now, up to and with the first wait; keep the rest for later."""
        waits = (index for index, order in enumerate(orders, 1) if isinstance(order, Wait))
        due = next(waits, len(orders))
        self._pending = orders[due:]
        # From now on a bad status tells of our own impatience.
        self._kills = self._kills or Tell(signal.SIGKILL) in orders[:due]
        return orders[:due]

    def culprit(self, failure: Failure) -> tuple[int, int | None]:
        """Return the rank that failed first, and its status; None if it did not come to its end.

        To be asked when all ranks have ended.
        """
        for rank in failure.suspects:
            if status := self._statuses.get(rank):
                return rank, status
        return failure.suspects[-1], None

    def exit_status(self) -> int:
        """Return what the launcher's caller gets, in the manner of a shell."""
        match self.trouble:
            case None:
                return 0
            case Failure() as failure:
                _, status = self.culprit(failure)
                if status is None:
                    return 1
                return status if status > 0 else 128 - status
            case SignalReceived(signum):
                return 128 + signum
            case Broken():
                return 1


def describe_status(status: int | None) -> str:
    """Say in words how a process ended; None: it was about to, and then did not."""
    if status is None:
        return "an exception, then it did not end by itself"
    if status >= 0:
        return f"exit status {status}"
    return f"killed by {signal_name(-status)}"


def signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:  # most real-time signals have no name
        return f"signal {signum}"
