"""Analysis of a job by the reports of ranks: positions, waits, stragglers."""

from collections.abc import Iterable, Mapping, Sequence

from allhands.coordinator.diagnosis import (
    CallPosition,
    Diagnosis,
    GroupDiagnosis,
    PendingOperation,
    RankDiagnosis,
    Straggler,
)
from allhands.coordinator.status import JobStatus, MemberStatus
from allhands.recorder.record import OperationRecord
from allhands.runtime.sections import SectionPosition, SectionRecord
from allhands_proto.quick_dataclass import dataclass
from allhands_proto.statuses import GroupWaits, OperationStatus


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
    section: SectionPosition | None = None
    """Which section its program was in; None: in none."""
    sections: tuple[SectionRecord, ...] = ()
    """The latest ones, those that it was in last."""


def diagnose(
    job: JobStatus,
    reports: Mapping[int, RankReport],
    absences: Mapping[int, str],
    waits: Sequence[GroupWaits] = (),
) -> Diagnosis:
    """Combine a job's status at the coordinator with the reports of ranks."""
    progress = {
        member.rank: reports[member.rank].progress if member.rank in reports else member.operations
        for member in job.members
    }
    ranks = tuple(
        _diagnose_rank(member, reports.get(member.rank), absences.get(member.rank, ""), job.clock)
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
    return Diagnosis(
        job.job, job.state, ranks, groups, tuple(late), job.failures, job.ended, tuple(waits)
    )


def _diagnose_rank(
    member: MemberStatus, report: RankReport | None, absence: str, clock: float | None
) -> RankDiagnosis:
    progress = member.operations if report is None else report.progress
    waits = _find_waits(progress, report, _compute_age(member, report, clock))
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
        section=member.section if report is None else report.section,
    )


def _compute_staleness(member: MemberStatus, report: RankReport | None) -> float:
    """Return the age in seconds of a lost rank's last heartbeat at its loss."""
    if member.state != "lost" or member.gone is None or report is not None:
        return 0.0
    return max(member.last_heartbeat - member.gone, 0.0)


def _compute_age(member: MemberStatus, report: RankReport | None, clock: float | None) -> float:
    """Return the seconds since a rank's report was made; without a report: since it was gone.

    Where its clock or the coordinator's is not known, a report counts as made at the last moment.
    """
    if report is None or clock is None or member.clock_offset is None:
        return member.gone or 0.0
    return max(clock - (report.now + member.clock_offset), 0.0)


def _find_waits(
    progress: Iterable[OperationStatus], report: RankReport | None, age: float
) -> tuple[PendingOperation, ...]:
    """Return a rank's operations under way: from its report, else from its heartbeats.

    `age` is that of the report or of the heartbeats' last state, in seconds.
    """
    found = []
    recorded = set()
    inside = {(now.group, now.sequence): now.elapsed for now in progress if now.operation}
    for one in () if report is None else report.operations:
        # Where it was when a failure ended its calls, its progress says.
        if one.outcome == "running" or (one.sequence and (one.group, one.sequence) in inside):
            assert report is not None
            recorded.add((one.group, one.sequence))
            since = begun = max(report.now - one.created / 1e9, 0.0)
            if one.outcome != "running":
                since = max(inside[one.group, one.sequence], 0.0)
            found.append(
                PendingOperation(
                    group=one.group,
                    sequence=one.sequence,
                    operation=one.operation,
                    signature=one.signature,
                    seconds=since,
                    waits_for=one.waits_for,
                    label=one.label,
                    source=one.source,
                    age=begun + age,
                )
            )
    for now in progress:
        if now.operation and (now.group, now.sequence) not in recorded:
            found.append(
                PendingOperation(
                    group=now.group,
                    sequence=now.sequence,
                    operation=now.operation,
                    signature="",
                    seconds=now.elapsed,
                    waits_for=(),
                    label="",
                    source="",
                    age=now.elapsed + age,
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
