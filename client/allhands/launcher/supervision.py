"""Supervision of a launch as a pure state machine: events in, actions out.

Pure: signals are sent, time passes and messages are shown elsewhere; see `launch`. The first
thing that goes wrong decides the outcome, whatever comes after it.

After a failure the other ranks get some time to fail of it by themselves, and to say so; then
SIGTERM, which ends what they wait for; and SIGKILL once the grace is over.
"""

import signal
from typing import TypeAlias

from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class RankExiting:
    """A rank is about to exit; the first failing rank to do so is the first failure."""

    rank: int
    is_failing: bool
    """Whether an exception ends it; else it may end well or not."""


@dataclass(frozen=True, slots=True)
class BlamedRank:
    """A rank named as lost in the error of another rank."""

    rank: int
    """In the world."""
    is_here: bool
    """Whether it is one of this launch."""
    state: str
    """As in verdicts."""
    text: str


@dataclass(frozen=True, slots=True)
class PeerLossReported:
    """Calls of a rank fail by the loss of a peer; None: the rank goes on without the peer."""

    rank: int
    cause: BlamedRank | None


@dataclass(frozen=True, slots=True)
class RankExited:
    rank: int
    status: int
    """Exit status; -n: killed by signal n."""


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """The launcher itself was asked to end."""

    signum: int


@dataclass(frozen=True, slots=True)
class LaunchBroken:
    """The launch cannot go on: a rank could not start, or output cannot be written."""

    reason: str


@dataclass(frozen=True, slots=True)
class JobStalled:
    """A call of the job has waited too long for ranks that do not come."""

    verdict: str
    restarts: bool
    """Whether the ranks are ended at once, to be started anew; else after an abort of the job."""


@dataclass(frozen=True, slots=True)
class TimerExpired:
    """The seconds of the latest `Wait` have passed."""


@dataclass(frozen=True, slots=True)
class RankFailure:
    """A rank failed: the first of the suspects whose status turns out to be bad.

    They had begun to end by then, in that order.
    """

    suspects: tuple[int, ...]


Problem: TypeAlias = RankFailure | SignalReceived | LaunchBroken | JobStalled
Event: TypeAlias = (
    RankExiting
    | PeerLossReported
    | RankExited
    | SignalReceived
    | LaunchBroken
    | JobStalled
    | TimerExpired
)


_STATES_OF_LATE_RANKS = frozenset({"paused", "stalled", "elsewhere", "busy", "slow"})
"""As in verdicts."""


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """The first failure of a launch."""

    rank: int
    """In the world."""
    is_here: bool
    """Whether it is a rank of this launch."""
    status: int | None
    """How it ended; None: that is not known, or it did not end by itself."""
    blame: BlamedRank | None = None
    """What the rank said that failed of its loss; None: none did."""
    victim: tuple[int, int | None] | None = None
    """The first rank that failed of its loss, and its status."""

    @property
    def is_late(self) -> bool:
        """Whether the rank was there, and others failed since it did not come to their call."""
        return self.blame is not None and self.blame.state in _STATES_OF_LATE_RANKS


@dataclass(frozen=True, slots=True)
class SendSignal:
    """Send a signal to the groups of all running ranks except `excluded`."""

    signum: int
    excluded: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Deliver `TimerExpired` after so many seconds; replaces an earlier timer."""

    seconds: float


@dataclass(frozen=True, slots=True)
class StopWaiting:
    """End without the rest: unread output, or an unkillable rank."""


Action: TypeAlias = SendSignal | StartTimer | StopWaiting

INTERRUPT_SECONDS = 2.0
FAILURE_SECONDS = 2.0
"""How long ranks may take to end by themselves after the failure of another one."""
GRACE_SECONDS = 10.0
"""How long ranks may take to end after SIGTERM, by default."""
KILL_SECONDS = 1.0
STALL_STATUS = 124
"""Exit status of the launcher for a stalled job, as timeout(1) has it."""

_KILL_NOW: tuple[Action, ...] = (
    SendSignal(signal.SIGKILL),
    StartTimer(KILL_SECONDS),
    StopWaiting(),
)


class Supervisor:
    """Decides when ranks are signalled, and the outcome of the launch."""

    def __init__(self, count: int = 0, min_size: int = 0, grace: float = GRACE_SECONDS) -> None:
        """Supervise `count` ranks; failures are tolerated while `min_size` ranks are left.

        A rank is left if it runs or has ended with status 0; with `min_size` 0 every failure
        counts. `grace` is the time that ranks may take to end after SIGTERM, in seconds.
        """
        self._count = count
        self._min_size = min_size
        self._grace = grace
        self.problem: Problem | None = None
        """What went wrong first; None as long as nothing has."""
        self._exiting: list[int] = []
        self._statuses: dict[int, int] = {}
        self._blames: dict[int, BlamedRank] = {}
        self._excluded: tuple[int, ...] | None = None
        """Whom no signal was sent to; None: none was sent."""
        self._has_killed = False
        self._pending: tuple[Action, ...] = ()

    def handle(self, event: Event) -> tuple[Action, ...]:
        """Record an event; return the actions due now, in order."""
        match event:
            case RankExiting(rank, failing):
                if rank not in self._exiting:
                    self._exiting.append(rank)
                return self._fail() if failing and not self._min_size else ()
            case PeerLossReported(rank, of):
                if of is None:
                    self._blames.pop(rank, None)
                elif rank not in self._statuses:
                    self._blames.setdefault(rank, of)
                return ()
            case RankExited(rank, status):
                if not self._has_killed and (self._excluded is None or rank in self._excluded):
                    self._statuses[rank] = status
                if rank not in self._exiting:
                    self._exiting.append(rank)
                return self._fail() if status != 0 and not self._is_tolerated() else ()
            case LaunchBroken():
                return self._end(event, self._plan_failure_end(()))
            case JobStalled(_, restarts):
                patience = () if restarts else (StartTimer(FAILURE_SECONDS),)
                return self._end(event, (*patience, *self._plan_failure_end(())))
            case SignalReceived() if self.problem is not None:
                return self._split_at_timer(_KILL_NOW)  # somebody has lost patience
            case SignalReceived(signal.SIGINT):
                interrupted = (SendSignal(signal.SIGINT), StartTimer(INTERRUPT_SECONDS))
                return self._end(event, (*interrupted, *self._plan_termination()))
            case SignalReceived():
                return self._end(event, self._plan_termination())
            case TimerExpired():
                return self._split_at_timer(self._pending)

    @property
    def has_signalled(self) -> bool:
        """Whether ranks were signalled to end: exits from then on are no failures."""
        return self._excluded is not None

    @property
    def may_restart(self) -> bool:
        """Whether what went wrong may go well with new ranks."""
        match self.problem:
            case RankFailure():
                return True
            case JobStalled(_, restarts):
                return restarts
            case _:
                return False

    def _plan_termination(self) -> tuple[Action, ...]:
        return (SendSignal(signal.SIGTERM), StartTimer(self._grace), *_KILL_NOW)

    def _plan_failure_end(self, suspects: tuple[int, ...]) -> tuple[Action, ...]:
        return (
            # What ends a suspect shall be its own failure.
            SendSignal(signal.SIGTERM, excluded=suspects),
            StartTimer(self._grace),
            SendSignal(signal.SIGKILL),
            # No `Abandon`: a slow reader gets all of the output, above all the reason.
        )

    def _is_tolerated(self) -> bool:
        """Whether enough ranks are left to tolerate the failed ranks."""
        failed = sum(status != 0 for status in self._statuses.values())
        return self._min_size > 0 and self._count - failed >= self._min_size

    def _fail(self) -> tuple[Action, ...]:
        suspects = tuple(rank for rank in self._exiting if self._statuses.get(rank) != 0)
        return self._end(
            RankFailure(suspects), (StartTimer(FAILURE_SECONDS), *self._plan_failure_end(suspects))
        )

    def _end(self, problem: Problem, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        if self.problem is not None:
            return ()
        self.problem = problem
        return self._split_at_timer(actions)

    def _split_at_timer(self, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        """Return the actions up to and with the first wait; keep the rest for later."""
        waits = (index for index, order in enumerate(actions, 1) if isinstance(order, StartTimer))
        due = next(waits, len(actions))
        self._pending = actions[due:]
        # From now on a bad status tells of our own impatience.
        for order in actions[:due]:
            if isinstance(order, SendSignal):
                self._excluded = order.excluded
        self._has_killed = self._has_killed or SendSignal(signal.SIGKILL) in actions[:due]
        return actions[:due]

    def find_first_failure(self, failure: RankFailure) -> FirstFailure:
        """Return the first failure; call after the end of all ranks.

        That is the first of the suspects that ended badly, or who it failed of: that rank may have
        ended well, but too early.
        """
        victim = self._find_victim(failure)
        passed, blamed = [victim], None
        while (one := self._blames.get(passed[-1])) is not None:
            if one.rank in passed:  # two that blame each other
                blamed = None
                break
            blamed = one
            if not one.is_here:
                break
            passed.append(one.rank)
        if blamed is None:
            return FirstFailure(victim, True, self._statuses.get(victim))
        status = self._statuses.get(blamed.rank) if blamed.is_here else None
        of_victim = (victim, self._statuses.get(victim))
        return FirstFailure(blamed.rank, blamed.is_here, status, blamed, of_victim)

    def _find_victim(self, failure: RankFailure) -> int:
        """Return the first suspect with a nonzero status, else the last suspect."""
        bad = (rank for rank in failure.suspects if self._statuses.get(rank))
        return next(bad, failure.suspects[-1])

    def compute_exit_status(self) -> int:
        """Return the exit status of the launcher, 128 + n for signal n."""
        match self.problem:
            case None:
                return 0
            case RankFailure() as failure:
                status = self.find_first_failure(failure).status or self._statuses.get(
                    self._find_victim(failure)
                )
                if not status:
                    return 1
                return status if status > 0 else 128 - status
            case SignalReceived(signum):
                return 128 + signum
            case LaunchBroken():
                return 1
            case JobStalled():
                return STALL_STATUS


def describe(first: FirstFailure, process: str) -> str:
    """Describe the first failure; `process` names the failing process."""
    said, status = first.blame, first.status
    if said is not None and (not first.is_here or first.is_late):
        return said.text
    if said is None or status:
        return f"{describe_status(status)} ({process})"
    if said.state != "left":
        return said.text
    how = "and did not end by itself" if status is None else "with exit status 0"
    return f"it left the job before the others were done, {how} ({process})"


def describe_status(status: int | None) -> str:
    """Describe the exit status of a process; None: announced its exit, but did not exit."""
    if status is None:
        return "an exception, then it did not end by itself"
    if status >= 0:
        return f"exit status {status}"
    return f"killed by {name_signal(-status)}"


def name_signal(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:  # most real-time signals have no name
        return f"signal {signum}"
