"""Diagnosis of a job from the reports of ranks: positions, waits, stragglers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from allhands.coordinator.status import JobStatus, MemberStatus
from allhands.recorder.record import OperationRecord
from allhands_proto.statuses import FailureStatus, OperationStatus


@dataclass(frozen=True, slots=True)
class RankReport:
    """Report of a rank."""

    now: float
    """When it said so, by its own monotonic clock, in seconds."""
    progress: tuple[OperationStatus, ...]
    """One per group."""
    operations: tuple[OperationRecord, ...]
    """The latest ones, oldest first."""
    stack: str
    """Of its main thread, innermost call last."""
    is_cut: bool
    """Whether there would have been more."""


@dataclass(frozen=True, slots=True)
class PendingOperation:
    """An operation under way on a rank."""

    group: str
    sequence: int
    """0 point to point."""
    operation: str
    signature: str
    seconds: float
    """Since it was asked for."""
    waits_for: tuple[int, ...]
    """Ranks of the world."""
    label: str
    source: str
    """The line that asked for it, as "train.py:31 in step"."""


@dataclass(frozen=True, slots=True)
class RankDiagnosis:
    """The diagnosis of a rank of the world."""

    rank: int
    host: str
    pid: int
    absence: str
    """Why it did not answer; empty: it did, or what it said at its end is known."""
    waits: tuple[PendingOperation, ...]
    """What it is in, the oldest first."""
    idle: float
    """Seconds since it is in none; 0: it is in one, or has not been in any."""
    last: str
    """The latest call that has ended there, where it is in none."""
    stack: str
    """Of its main thread."""
    gone: str = ""
    """`lost` or `left`: all this is of the time before; empty: it is there."""
    stale: float = 0.0
    """Of a rank that is lost: seconds from the heartbeat that told this to its loss."""


@dataclass(frozen=True, slots=True)
class CallPosition:
    """Where some ranks are in the order of a group's calls."""

    sequence: int
    operation: str
    """The call that they are in; empty: that one has ended, and they are in none."""
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupDiagnosis:
    """Where the ranks of a group are, the foremost first."""

    group: str
    positions: tuple[CallPosition, ...]
    unknown: tuple[int, ...] = ()
    """Ranks that were lost and did not say where they were then."""
    is_over: bool = False
    """The job has ended: these are positions at its end, and who was behind is not to blame."""

    @property
    def behind(self) -> tuple[int, ...]:
        """Ranks that have not begun the current call of other ranks; none in an ended job."""
        if not self.positions or self.is_over:
            return ()
        first = self.positions[0].sequence
        behind = (one.ranks for one in self.positions[1:] if one.sequence < first)
        return tuple(sorted(rank for ranks in behind for rank in ranks))


@dataclass(frozen=True, slots=True)
class Straggler:
    """How late a rank began the latest calls of a group, against the earliest of each."""

    rank: int
    group: str
    calls: int
    median: float
    worst: float
    last: int
    """Of how many of these calls it was the last."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A job at a moment; `str()` of it is the output of `allhands diagnose`."""

    job: str
    state: str
    ranks: tuple[RankDiagnosis, ...]
    groups: tuple[GroupDiagnosis, ...]
    stragglers: tuple[Straggler, ...]
    """The latest first."""
    failures: tuple[FailureStatus, ...] = ()
    """What has failed, the first failure first."""
    ended: float | None = None
    """Seconds since the job ended; None: it has not."""

    @property
    def has_failed(self) -> bool:
        """Whether the job has ended, and not well."""
        return self.ended is not None and bool(self.failures)

    def __str__(self) -> str:
        # Only who looks at the table pays for importing what draws it.
        from allhands.coordinator.tables import draw_diagnosis, render_plain

        return render_plain(draw_diagnosis(self))


def diagnose(
    job: JobStatus, reports: Mapping[int, RankReport], absences: Mapping[int, str]
) -> Diagnosis:
    """Combine a job's status at the coordinator with the reports of ranks."""
    progress = {
        member.rank: reports[member.rank].progress if member.rank in reports else member.operations
        for member in job.members
    }
    ranks = tuple(
        _diagnose_rank(member, reports.get(member.rank), absences.get(member.rank, ""))
        for member in job.members
    )
    silent = {
        member.rank
        for member in job.members
        if member.state == "lost" and member.rank not in reports
    }
    groups = tuple(
        GroupDiagnosis(
            group.group,
            _find_positions(group.group, [at for at in group.ranks if at not in silent], progress),
            tuple(sorted(silent.intersection(group.ranks))),
            job.ended is not None,
        )
        for group in job.groups
    )
    late = [
        Straggler(member.rank, one.group, one.calls, one.median, one.worst, one.last)
        for member in job.members
        for one in member.lateness
    ]
    late.sort(key=lambda one: (-one.median, -one.last, one.rank))
    return Diagnosis(job.job, job.state, ranks, groups, tuple(late), job.failures, job.ended)


def _diagnose_rank(member: MemberStatus, report: RankReport | None, absence: str) -> RankDiagnosis:
    progress = member.operations if report is None else report.progress
    waits = _find_waits(progress, report)
    ended = min(progress, key=lambda one: one.elapsed, default=None)
    idle, last = 0.0, ""
    if not waits and ended is not None and ended.sequence:
        idle = ended.elapsed
        last = _format_last_call(ended, () if report is None else report.operations)
    return RankDiagnosis(
        rank=member.rank,
        host=member.host,
        pid=member.pid,
        absence=absence,
        waits=waits,
        idle=idle,
        last=last,
        stack="" if report is None else report.stack,
        gone="" if member.state == "joined" else member.state,
        stale=_compute_staleness(member, report),
    )


def _compute_staleness(member: MemberStatus, report: RankReport | None) -> float:
    """Return the age in seconds of a lost rank's last heartbeat at its loss."""
    if member.state != "lost" or member.gone is None or report is not None:
        return 0.0
    return max(member.last_heartbeat - member.gone, 0.0)


def _find_waits(
    progress: Iterable[OperationStatus], report: RankReport | None
) -> tuple[PendingOperation, ...]:
    """Return a rank's operations under way: from its report, else from its heartbeats."""
    found = []
    recorded = set()
    inside = {(now.group, now.sequence): now.elapsed for now in progress if now.operation}
    for one in () if report is None else report.operations:
        # Where it was when a failure ended its calls, its progress says.
        if one.outcome == "running" or (one.sequence and (one.group, one.sequence) in inside):
            assert report is not None
            recorded.add((one.group, one.sequence))
            since = report.now - one.created / 1e9
            if one.outcome != "running":
                since = inside[one.group, one.sequence]
            found.append(
                PendingOperation(
                    group=one.group,
                    sequence=one.sequence,
                    operation=one.operation,
                    signature=one.signature,
                    seconds=max(since, 0.0),
                    waits_for=one.waits_for,
                    label=one.label,
                    source=one.source,
                )
            )
    for now in progress:
        if now.operation and (now.group, now.sequence) not in recorded:
            found.append(
                PendingOperation(
                    now.group, now.sequence, now.operation, "", now.elapsed, (), "", ""
                )
            )
    return tuple(sorted(found, key=lambda one: -one.seconds))


def _format_last_call(ended: OperationStatus, operations: Sequence[OperationRecord]) -> str:
    """Name the call after which a rank has been in none."""
    call = f"#{ended.sequence} of group {ended.group}"
    for one in reversed(operations):
        if one.group == ended.group and one.sequence == ended.sequence:
            at = f" at {one.source}" if one.source else ""
            how = f" ({one.outcome})" if one.outcome not in ("ok", "running") else ""
            return f"{one.operation} {call}{at}{how}"
    return call


def _find_positions(
    group: str, ranks: Iterable[int], progress: Mapping[int, Sequence[OperationStatus]]
) -> tuple[CallPosition, ...]:
    at: dict[tuple[int, str], list[int]] = {}
    for rank in ranks:
        here = next((one for one in progress.get(rank, ()) if one.group == group), None)
        key = (0, "") if here is None else (here.sequence, here.operation)
        at.setdefault(key, []).append(rank)
    return tuple(
        CallPosition(sequence, operation, tuple(sorted(found)))
        for (sequence, operation), found in sorted(
            at.items(), key=lambda one: (-one[0][0], not one[0][1], one[0][1])
        )
    )
