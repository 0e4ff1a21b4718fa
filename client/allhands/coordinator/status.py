"""Status of a job at the coordinator: members, progress, groups."""

from collections.abc import Iterable, Sequence

from allhands.coordinator.sections import (
    Column,
    Marked,
    Section,
    Table,
    format_ago,
    format_duration,
    format_ranks,
    format_short,
)
from allhands.coordinator.stalls import describe_stall, list_stalls
from allhands.runtime.sections import SectionPosition
from allhands_proto.quick_dataclass import dataclass
from allhands_proto.statuses import FailureStatus, GroupStatus, LatenessStatus, OperationStatus

_MAX_FAILURES = 4
_MAX_STALLS = 4
_MAX_TEXT = 300
_LATE_SECONDS = 0.01
"""Median lateness from which on a rank is marked as late."""
_ORDER = {"empty": 1, "ended": 2}
"""Of jobs by state: live ones go first."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One worker of a job."""

    rank: int
    member_id: str
    host: str
    pid: int
    address: str
    """`host:port` where its peers reach it."""
    label: str
    state: str
    """`joined`, `lost` or `left`."""
    reason: str
    """Of being lost, or of having left."""
    last_heartbeat: float
    """Seconds ago."""
    operations: tuple[OperationStatus, ...]
    """One per group in which it has made a call."""
    clock_offset: float | None = None
    """What to add to its monotonic clock to get the coordinator's, in seconds; None: unknown."""
    lateness: tuple[LatenessStatus, ...] = ()
    """One per group where it is known."""
    gone: float | None = None
    """Seconds since it was lost or left; None: it is there."""
    condition: str = ""
    """`stalled`, `paused` or `unreachable`: silent towards the coordinator though it lives; ""."""
    condition_text: str = ""
    """The sentence on that."""
    section: SectionPosition | None = None
    """Which section its program is in; None: in none."""

    def find_operation(self, group: str) -> OperationStatus | None:
        return next((one for one in self.operations if one.group == group), None)

    def get_age(self, operation: OperationStatus) -> float:
        """Return the seconds since the beginning of the state that an operation's `elapsed` counts.

        `elapsed` stands still from the moment on at which the member was gone.
        """
        return operation.elapsed + (self.gone or 0.0)

    def find_lateness(self, group: str) -> LatenessStatus | None:
        return next((one for one in self.lateness if one.group == group), None)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One job. `str()` of it is the table that `allhands status` shows."""

    job: str
    state: str
    """`empty` (keys, no member), `forming`, `running`, `degraded` (members lost) or `ended`."""
    epoch: int
    world_size: int
    """0: not agreed yet."""
    members: tuple[MemberStatus, ...]
    """By rank; those of the last incarnation when the job has ended."""
    groups: tuple[GroupStatus, ...]
    heartbeat_window: float
    """Seconds of silence after which a member counts as lost."""
    keys: int
    """How many the job's store holds."""
    incarnation: str
    failures: tuple[FailureStatus, ...] = ()
    """The first failure first; without those that the members have gone on from."""
    ended: float | None = None
    """Seconds since its last member was gone; None: it has not ended."""
    clock: float | None = None
    """The coordinator's clock at this moment, in seconds; None: it is of a version that does not
    tell."""

    def __str__(self) -> str:
        # Only who looks at the table pays for importing what draws it.
        from allhands.coordinator.tables import render_plain

        return render_plain(describe_job(self))


def sort_jobs(jobs: Iterable[JobStatus]) -> tuple[JobStatus, ...]:
    """Return jobs with members first, then those of keys alone, then ended ones; by name each."""
    return tuple(sorted(jobs, key=lambda job: (_ORDER.get(job.state, 0), job.job)))


def describe_jobs(jobs: Sequence[JobStatus]) -> list[Section]:
    """Describe every job, one below the other; or say that there is none."""
    if not jobs:
        return ["no jobs"]
    first, *others = map(describe_job, jobs)
    return first + [section for other in others for section in ["", *other]]


def describe_job(job: JobStatus) -> list[Section]:
    """Describe a job: its line, failures, stalls, a row per operation of each member, losses.

    Below the rows are the ranks that are gone of which the failures do not tell.
    """
    sections: list[Section] = [_format_headline(job), *describe_failures(job.failures)]
    sections += (
        Marked(describe_stall(stall), "late")
        for stall in list_stalls(job.members, job.groups)[:_MAX_STALLS]
    )
    if job.groups:
        named = ", ".join(f"{one.group} ({format_ranks(one.ranks)})" for one in job.groups)
        sections.append(f"groups: {named}")
    if job.members:
        sections.append(_list_members(job.members))
    told = _list_told(job.failures)
    untold = [one for one in job.members if one.state == "joined" or one.rank not in told]
    return sections + _describe_reasons(untold)


def describe_group(job: JobStatus, group: GroupStatus) -> list[Section]:
    """List each rank of the group with its progress, including ranks that never joined."""
    table = Table(
        ("RANK", "right"),
        ("WORLD RANK", "right"),
        ("HOST", "left"),
        ("PID", "right"),
        ("STATE", "left"),
        ("HEARTBEAT", "right"),
        ("BEGUN", "right"),
        ("COMPLETED", "right"),
        ("OPERATION", "left"),
        ("SINCE", "right"),
        wide=("PID",),
    )
    present = {member.rank: member for member in job.members}
    for place, rank in enumerate(group.ranks):
        member = present.get(rank)
        if member is None:
            missing = Marked("never joined", "bad")
            table.add_row(str(place), str(rank), "-", "-", missing, *["-"] * 5)
            continue
        now = member.find_operation(group.group) or OperationStatus(group.group, "", 0, 0, 0.0)
        table.add_row(
            str(place),
            str(rank),
            member.host,
            str(member.pid),
            _get_state(member),
            format_ago(member.last_heartbeat),
            str(now.sequence),
            str(now.completed),
            now.operation or "-",
            format_duration(now.elapsed) if now.operation else "-",
        )
    title = f"group {group.group} of job {job.job}: {len(group.ranks)} ranks, epoch {job.epoch}"
    known = [present[rank] for rank in group.ranks if rank in present]
    return [title, table, *_describe_reasons(known)]


def _format_headline(job: JobStatus) -> str:
    size = f"world size {job.world_size}" if job.world_size else "world size not agreed yet"
    joined = sum(member.state == "joined" for member in job.members)
    keys = f"{job.keys} key{'' if job.keys == 1 else 's'}"
    over = "" if job.ended is None else f", ended {format_ago(job.ended)}"
    text = f"job {job.job}: {job.state}, epoch {job.epoch}, {size}, {joined} joined, {keys}{over}"
    return Marked(text, "bad") if job.failures or job.state == "degraded" else text


def describe_failures(failures: Sequence[FailureStatus]) -> list[str]:
    """Describe the failures of a job in a line each, the first failure first."""
    said: list[str] = []
    for at, one in enumerate(failures[:_MAX_FAILURES]):
        said.append(Marked(f"{'then' if at else 'failed first'}: {_shorten(one.text)}", "bad"))
    if more := len(failures) - len(said):
        said.append(f"and {more} failure{'' if more == 1 else 's'} more")
    return said


def _list_told(failures: Sequence[FailureStatus]) -> set[int]:
    """Return the ranks of whose failures `describe_failures` tells all."""
    shown = failures[:_MAX_FAILURES]
    return {one.rank for one in shown if len(one.text.partition("\n")[0]) <= _MAX_TEXT}


def _list_members(members: Sequence[MemberStatus]) -> Table:
    with_label = any(member.label for member in members)
    label: Sequence[Column] = [("LABEL", "left")] if with_label else []
    table = Table(
        ("RANK", "right"),
        *label,
        ("HOST", "left"),
        ("PID", "right"),
        ("ADDRESS", "left"),
        ("STATE", "left"),
        ("HEARTBEAT", "right"),
        ("GROUP", "left"),
        ("OPERATION", "left"),
        ("SEQ", "right"),
        ("SINCE", "right"),
        ("LATE", "right"),
        wide=("PID", "ADDRESS"),
    )
    for member in members:
        who = (
            str(member.rank),
            *([member.label or "-"] if with_label else []),
            member.host,
            str(member.pid),
            member.address,
            _get_state(member),
            format_ago(member.last_heartbeat),
        )
        first, *others = _choose_operations(member)
        table.add_row(
            *who, *_format_operation(first, member.section), _format_lateness(member, first)
        )
        for other in others:
            table.add_row(
                *[""] * len(who), *_format_operation(other), _format_lateness(member, other)
            )
    return table


def _get_state(member: MemberStatus) -> str:
    """Return a member's state, or its condition while silent."""
    if member.state == "joined" and member.condition:
        return Marked(member.condition, "late")
    return Marked(member.state, "bad") if member.state == "lost" else member.state


def _choose_operations(member: MemberStatus) -> Sequence[OperationStatus | None]:
    """Return a member's operations under way, else its last operation, else None."""
    if member.state == "joined":
        busy = [one for one in member.operations if one.operation]
        if busy:
            return busy
    latest = min(member.operations, key=lambda one: one.elapsed, default=None)
    return [latest]


def _format_operation(
    one: OperationStatus | None, section: SectionPosition | None = None
) -> tuple[str, str, str, str]:
    """Format group, operation, number and time; outside of a call the section and its time."""
    if section is not None and (one is None or not one.operation):
        group, number = ("-", "-") if one is None else (one.group, str(one.sequence))
        return group, f"section {section.name}", number, format_duration(section.elapsed)
    if one is None:
        return "-", "-", "-", "-"
    return one.group, one.operation or "-", str(one.sequence), format_duration(one.elapsed)


def _format_lateness(member: MemberStatus, one: OperationStatus | None) -> str:
    late = None if one is None else member.find_lateness(one.group)
    if late is None:
        return "-"
    text = format_short(late.median)
    return Marked(text, "late") if late.median >= _LATE_SECONDS else text


def _describe_reasons(members: Iterable[MemberStatus]) -> list[str]:
    """Say in a line each why members are gone or silent: a column would be far too wide."""
    said: list[str] = []
    for one in members:
        if one.reason:
            # A traceback, in the lines behind the first, is in the failures' documents.
            reason, *_ = one.reason.partition("\n")
            text = f"rank {one.rank} {one.state}: {reason}"
            said.append(Marked(text, "bad") if one.state == "lost" else text)
        elif one.state == "joined" and one.condition:
            said.append(Marked(one.condition_text, "late"))
    return said


def _shorten(text: str) -> str:
    first = text.partition("\n")[0]
    return first if len(first) <= _MAX_TEXT else f"{first[: _MAX_TEXT - 1]}…"
