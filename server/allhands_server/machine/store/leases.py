"""Leases of a job: with the end of a lease its keys are deleted."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from allhands_proto.quick_dataclass import dataclass
from allhands_server.machine.changes import Change, ChangeRecorder, LeaseEnded, LeaseGranted, Undo
from allhands_server.machine.effects import Answer, Effect, LeaseTimed
from allhands_server.machine.fast_dataclass import fast_dataclass
from allhands_server.machine.limits import LEASE_TTL_LEAST, LEASE_TTL_MOST
from allhands_server.machine.memory_use import LEASE_NBYTES, JobMemory, refuse_count
from allhands_server.machine.refusals import Refused, Status
from allhands_server.machine.requests import Request
from allhands_server.machine.store.key_table import KeyTable
from allhands_server.machine.timers import Timer, TimerQueue

RESTART_SECONDS = 5.0
"""Time that a lease has at least after a restart, for its keep-alives to come again, and after the
log has refused its end."""


@fast_dataclass
class LeaseGrantResult:
    lease: int
    ttl: float
    """Seconds."""


@fast_dataclass
class LeaseRevokeResult:
    revision: int
    deleted: int
    """Number of keys."""


@fast_dataclass
class LeaseStatus:
    """Times of a lease, in seconds."""

    granted: float
    remaining: float
    keys: tuple[str, ...]
    """Sorted, if asked for."""


@fast_dataclass
class LeaseGrant(Request[LeaseGrantResult]):
    """Grant a lease; `lease` 0: with a new number."""

    job: str
    ttl: float
    lease: int = 0


@fast_dataclass
class LeaseRevoke(Request[LeaseRevokeResult]):
    """End a lease, and delete its keys."""

    job: str
    lease: int


@fast_dataclass
class LeaseKeepAlive(Request[float]):
    """Begin a lease's time again; answered with its seconds."""

    job: str
    lease: int


@fast_dataclass
class LeaseTimeToLive(Request[LeaseStatus]):
    """Ask for the time that is left."""

    job: str
    lease: int
    with_keys: bool = False


@fast_dataclass
class LeaseList(Request[tuple[int, ...]]):
    """Answered in order."""

    job: str


LeaseRequest: TypeAlias = LeaseGrant | LeaseRevoke | LeaseKeepAlive | LeaseTimeToLive | LeaseList


@dataclass(slots=True)
class _Lease:
    number: int
    ttl: float
    due: float | None = None
    """When it ends; None: its time has not begun."""
    timer: Timer | None = None


class Leases:
    """The leases of one job; a lease ends when it is due, by the machine's timers, never before.

    Keep-alives are no changes: after a restart a lease has all of its time, or what was left.
    """

    def __init__(
        self,
        job: str,
        recorder: ChangeRecorder,
        timers: TimerQueue,
        table: KeyTable,
        memory: JobMemory,
        on_end: Callable[[], None],
    ) -> None:
        """Make an empty part of a job; `on_end` is called after the end of a lease."""
        self._job = job
        self._memory = memory
        self._recorder = recorder
        self._timers = timers
        self._table = table
        self._on_end = on_end
        self._leases: dict[int, _Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def check_lease(self, lease: int) -> None:
        """Refuse an unknown lease."""
        self._find(lease)

    def submit(self, ticket: int, request: LeaseRequest, now: float) -> list[Effect]:
        """Answer at once.

        Raises:
            Refused: nothing has changed.
        """
        match request:
            case LeaseGrant():
                granted = self._grant(request, now)
                return [
                    LeaseTimed(self._job, granted.lease, now + granted.ttl),
                    Answer(ticket, granted),
                ]
            case LeaseRevoke(_, number):
                deleted = self._end(self._find(number))
                return [Answer(ticket, LeaseRevokeResult(self._table.revision, deleted))]
            case LeaseKeepAlive(_, number):
                lease = self._find(number)
                self._start(lease, now + lease.ttl)
                return [LeaseTimed(self._job, number, now + lease.ttl), Answer(ticket, lease.ttl)]
            case LeaseTimeToLive(_, number, with_keys):
                lease = self._find(number)
                due = now + lease.ttl if lease.due is None else lease.due
                keys = self._table.bindings.list_keys(number) if with_keys else ()
                return [Answer(ticket, LeaseStatus(lease.ttl, max(due - now, 0.0), tuple(keys)))]
            case LeaseList():
                return [Answer(ticket, tuple(sorted(self._leases)))]

    # ------------------------------------------------------------ durable state

    def apply(self, change: LeaseGranted | LeaseEnded) -> None:
        """Make a change; the time of a lease begins with `start_all`."""
        if isinstance(change, LeaseGranted):
            self._leases[change.lease] = _Lease(change.lease, change.ttl)
            self._memory.add(LEASE_NBYTES)
            self._table.revision = max(self._table.revision, change.revision)
            return
        self._drop(change.lease)
        self._table.delete_bound(change.lease, change.revision)

    def make_undo(self, change: LeaseGranted | LeaseEnded) -> Undo:
        """Return the reverse of a change about to be applied; revisions are not given again."""
        if isinstance(change, LeaseGranted):
            return lambda: self._drop(change.lease)
        lease = self._leases[change.lease]
        undo_deletion = self._table.make_undo_bound(change.lease, change.revision)

        def undo() -> None:
            self._leases[lease.number] = lease
            self._memory.add(LEASE_NBYTES)
            lease.timer = None
            undo_deletion()

        return undo

    def start_all(self, now: float, remaining: Mapping[tuple[str, int], float]) -> None:
        """Begin the time of leases without a timer: restored, or back where a change failed.

        Args:
            remaining: seconds left of restored leases, by job and number; of the others all are.
        """
        for lease in self._leases.values():
            if lease.timer is None:
                left = remaining.get((self._job, lease.number), lease.ttl)
                due = now + min(left, lease.ttl) if lease.due is None else lease.due
                self._start(lease, max(due, now + min(lease.ttl, RESTART_SECONDS)))

    def clear(self) -> None:
        """Drop all leases."""
        for number in list(self._leases):
            self._drop(number)

    def list_changes(self) -> Iterator[Change]:
        """Return changes that make the leases of now; later changes do not matter."""
        job, revision = self._job, self._table.revision
        granted = [(lease.number, lease.ttl) for lease in self._leases.values()]
        return (LeaseGranted(job, number, ttl, revision) for number, ttl in granted)

    def _drop(self, number: int) -> None:
        lease = self._leases.pop(number)
        self._memory.add(-LEASE_NBYTES)
        if lease.timer is not None:
            lease.timer.cancel()

    # ------------------------------------------------------------ inside

    def _grant(self, request: LeaseGrant, now: float) -> LeaseGrantResult:
        ttl = request.ttl
        if not LEASE_TTL_LEAST <= ttl <= LEASE_TTL_MOST:
            raise Refused(
                Status.INVALID_ARGUMENT,
                f"a lease lives from {LEASE_TTL_LEAST:g} to {LEASE_TTL_MOST:,.0f} seconds: {ttl:g}",
            )
        if request.lease in self._leases:
            text = f"job {self._job} has lease {request.lease} already"
            raise Refused(Status.ALREADY_EXISTS, text)
        most = self._memory.limits.job_leases
        if most and (count := len(self._leases)) >= most:
            remedy = "bind more keys to each, revoke those that nobody needs"
            raise refuse_count(self._job, count, "leases", "job-leases", remedy)
        self._memory.check(LEASE_NBYTES)
        revision = self._table.revision + 1  # no two leases have the same number, ever
        number = request.lease or revision
        while number in self._leases:
            number += 1
        self._recorder.commit(LeaseGranted(self._job, number, ttl, revision), self)
        self._start(self._leases[number], now + ttl)
        return LeaseGrantResult(number, ttl)

    def _find(self, number: int) -> _Lease:
        if (lease := self._leases.get(number)) is None:
            text = f"job {self._job} has no lease {number}: it has ended, or was never granted"
            raise Refused(Status.NOT_FOUND, text)
        return lease

    def _start(self, lease: _Lease, due: float) -> None:
        """Let a lease end at `due`."""
        lease.due = due
        # A keep-alive leaves the timer as it is: when it runs, it sees how long there is to wait.
        if lease.timer is None or lease.timer.due > due:
            self._schedule(lease, due)

    def _schedule(self, lease: _Lease, due: float) -> None:
        if lease.timer is not None:
            lease.timer.cancel()
        lease.timer = self._timers.schedule(due, lambda now: self._on_timer(lease, now))

    def _on_timer(self, lease: _Lease, now: float) -> list[Effect]:
        assert lease.due is not None
        if lease.due > now:
            self._schedule(lease, lease.due)
        else:
            self._end(lease)
        return []

    def _end(self, lease: _Lease) -> int:
        """End a lease, and delete its keys; return how many."""
        deleted = self._table.bindings.count_keys(lease.number)
        revision = self._table.revision + (1 if deleted else 0)
        self._recorder.commit(LeaseEnded(self._job, lease.number, revision), self)
        self._on_end()
        return deleted
