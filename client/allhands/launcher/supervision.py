"""What a launch does about what happens to its ranks: events in, orders out.

Pure: signals are sent, time passes and messages are shown elsewhere; see `launch`. The first
thing that goes wrong decides the outcome, whatever comes after it.

After a failure the other ranks get some time to fail of it by themselves, and to say so; then
SIGTERM, which ends what they wait for; and SIGKILL once the grace is over.
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
class Blamed:
    """A rank of whose loss another one fails."""

    rank: int
    """In the world."""
    is_here: bool
    """Whether it is one of this launch."""
    state: str
    """As in verdicts."""
    text: str


@dataclass(frozen=True, slots=True)
class RankFails:
    """Calls of a rank fail of the loss of another one; None: it goes on without that."""

    rank: int
    of: Blamed | None


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
Event: TypeAlias = RankEnding | RankFails | RankEnded | SignalReceived | Broken | PatienceOver


@dataclass(frozen=True, slots=True)
class Culprit:
    """Who failed first."""

    rank: int
    """In the world."""
    is_here: bool
    """Whether it is a rank of this launch."""
    status: int | None
    """How it ended; None: that is not known, or it did not end by itself."""
    said: Blamed | None = None
    """What the rank said that failed of its loss; None: none did."""
    victim: tuple[int, int | None] | None = None
    """The first rank that failed of its loss, and its status."""


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
FAILURE_SECONDS = 2.0
"""How long ranks may take to end by themselves after the failure of another one."""
GRACE_SECONDS = 10.0
"""How long ranks may take to end after SIGTERM, by default."""
LAST_SECONDS = 1.0

_AT_ONCE: tuple[Order, ...] = (Tell(signal.SIGKILL), Wait(LAST_SECONDS), Abandon())


class Supervisor:
    """Decides when the ranks are told to end, and what the launch came to."""

    def __init__(self, count: int = 0, least: int = 0, grace: float = GRACE_SECONDS) -> None:
        """Supervise `count` ranks; with a `least`, others may fail while so many run or end well.

        Then a rank that fails is no trouble by itself. `grace` is how long ranks may take to end
        after SIGTERM, in seconds.
        """
        self._count = count
        self._least = least
        self._grace = grace
        self.trouble: Trouble | None = None
        """What went wrong first; None as long as nothing has."""
        self._ending: list[int] = []
        self._statuses: dict[int, int] = {}
        self._fails_of: dict[int, Blamed] = {}
        self._spared: tuple[int, ...] | None = None
        """Whom no signal was sent to; None: none was sent."""
        self._kills = False
        self._pending: tuple[Order, ...] = ()

    def handle(self, event: Event) -> tuple[Order, ...]:
        """Take note of an event; return what is to be done about it now, in order."""
        match event:
            case RankEnding(rank, failing):
                if rank not in self._ending:
                    self._ending.append(rank)
                return self._fail() if failing and not self._least else ()
            case RankFails(rank, of):
                if of is None:
                    self._fails_of.pop(rank, None)
                elif rank not in self._statuses:
                    self._fails_of.setdefault(rank, of)
                return ()
            case RankEnded(rank, status):
                if not self._kills and (self._spared is None or rank in self._spared):
                    self._statuses[rank] = status
                if rank not in self._ending:
                    self._ending.append(rank)
                return self._fail() if status != 0 and not self._is_borne() else ()
            case Broken():
                return self._end(event, self._ended(()))
            case SignalReceived() if self.trouble is not None:
                return self._until_wait(_AT_ONCE)  # somebody has lost patience
            case SignalReceived(signal.SIGINT):
                interrupted = (Tell(signal.SIGINT), Wait(INTERRUPT_SECONDS))
                return self._end(event, (*interrupted, *self._terminated()))
            case SignalReceived():
                return self._end(event, self._terminated())
            case PatienceOver():
                return self._until_wait(self._pending)

    @property
    def tells(self) -> bool:
        """Whether ranks have been told to end: how they end says nothing about them from then."""
        return self._spared is not None

    def _terminated(self) -> tuple[Order, ...]:
        return (Tell(signal.SIGTERM), Wait(self._grace), *_AT_ONCE)

    def _ended(self, suspects: tuple[int, ...]) -> tuple[Order, ...]:
        return (
            # What ends a suspect shall be its own failure.
            Tell(signal.SIGTERM, spare=suspects),
            Wait(self._grace),
            Tell(signal.SIGKILL),
            # No `Abandon`: a slow reader gets all of the output, above all the reason.
        )

    def _is_borne(self) -> bool:
        """Whether enough ranks are left that the others' failing is no trouble."""
        failed = sum(status != 0 for status in self._statuses.values())
        return self._least > 0 and self._count - failed >= self._least

    def _fail(self) -> tuple[Order, ...]:
        suspects = tuple(rank for rank in self._ending if self._statuses.get(rank) != 0)
        return self._end(Failure(suspects), (Wait(FAILURE_SECONDS), *self._ended(suspects)))

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
        for order in orders[:due]:
            if isinstance(order, Tell):
                self._spared = order.spare
        self._kills = self._kills or Tell(signal.SIGKILL) in orders[:due]
        return orders[:due]

    def culprit(self, failure: Failure) -> Culprit:
        """Return who failed first; to be asked when all ranks have ended.

        That is the first of the suspects that ended badly, or who it failed of: that rank may have
        ended well, but too early.
        """
        victim = self._victim(failure)
        passed, blamed = [victim], None
        while (one := self._fails_of.get(passed[-1])) is not None:
            if one.rank in passed:  # two that blame each other
                blamed = None
                break
            blamed = one
            if not one.is_here:
                break
            passed.append(one.rank)
        if blamed is None:
            return Culprit(victim, True, self._statuses.get(victim))
        status = self._statuses.get(blamed.rank) if blamed.is_here else None
        of_victim = (victim, self._statuses.get(victim))
        return Culprit(blamed.rank, blamed.is_here, status, blamed, of_victim)

    def _victim(self, failure: Failure) -> int:
        """Return the first suspect that ended badly; the last one if none came to its end."""
        bad = (rank for rank in failure.suspects if self._statuses.get(rank))
        return next(bad, failure.suspects[-1])

    def exit_status(self) -> int:
        """Return what the launcher's caller gets, in the manner of a shell."""
        match self.trouble:
            case None:
                return 0
            case Failure() as failure:
                status = self.culprit(failure).status or self._statuses.get(self._victim(failure))
                if not status:
                    return 1
                return status if status > 0 else 128 - status
            case SignalReceived(signum):
                return 128 + signum
            case Broken():
                return 1


def describe(culprit: Culprit, process: str) -> str:
    """Say in words how who failed first did so; `process` says which one that was."""
    said, status = culprit.said, culprit.status
    if not culprit.is_here and said is not None:
        return said.text
    if said is None or status:
        return f"{describe_status(status)} ({process})"
    if said.state != "left":
        return said.text
    how = "and did not end by itself" if status is None else "with exit status 0"
    return f"it left the job before the others were done, {how} ({process})"


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
