"""Diagnosis of a job: positions, waits, stragglers."""

from collections.abc import Sequence

from allhands.coordinator.sections import (
    Marked,
    Section,
    Table,
    format_ago,
    format_duration,
    format_ranks,
    format_short,
    name_ranks,
)
from allhands.coordinator.status import describe_failures
from allhands.runtime.sections import SectionPosition
from allhands_proto.quick_dataclass import dataclass
from allhands_proto.statuses import FailureStatus, GroupWaits

_WORTH_WORDS = 1e-3
"""Seconds of waiting for a rank from which on it is named."""
_MAX_STRAGGLERS = 16
"""Rows of the ranking: who is never late is of no interest."""


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
    age: float
    """Seconds from the request to the diagnosis; `seconds` stand still once the rank is gone."""


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
    section: SectionPosition | None = None
    """Which section its program is in; None: in none."""


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
    waits: tuple[GroupWaits, ...] = ()
    """Who waited for whom in the last ten minutes, and in the whole run, by group."""

    @property
    def has_failed(self) -> bool:
        """Whether the job has ended, and not well."""
        return self.ended is not None and bool(self.failures)

    def __str__(self) -> str:
        # Only who looks at the table pays for importing what draws it.
        from allhands.coordinator.tables import render_plain

        return render_plain(describe_diagnosis(self))


def describe_diagnosis(diagnosis: Diagnosis) -> list[Section]:
    """Describe positions, waits, stragglers and the stacks of idle ranks."""
    over = f"; it ended {format_ago(diagnosis.ended)}" if diagnosis.ended is not None else ""
    how = (
        diagnosis.state
        if diagnosis.ended is None
        else "failed"
        if diagnosis.has_failed
        else "ended well"
    )
    headline = f"job {diagnosis.job}: {how}{over}"
    sections: list[Section] = [
        Marked(headline, "bad") if diagnosis.has_failed else headline,
        *describe_failures(diagnosis.failures),
    ]
    told = [group for group in diagnosis.groups if group.positions or group.unknown]
    sections += [_format_positions(group) for group in told]
    sections.append(_list_waits(diagnosis))
    silent = [one for one in diagnosis.ranks if one.absence]
    sections += [
        Marked(f"rank {one.rank} did not report: {one.absence}{_format_staleness(one)}", "late")
        for one in silent
    ]
    if diagnosis.stragglers:
        sections += [
            "",
            "latest to begin its calls first:",
            _list_stragglers(diagnosis.stragglers),
        ]
    sections += [said for group in diagnosis.waits if (said := describe_waits(group))]
    for one in diagnosis.ranks:
        if not one.waits and one.stack:
            where = f"rank {one.rank} (host {one.host}, pid {one.pid})"
            was = "was" if one.gone else "is"
            inside = f", in section {one.section.name}" if one.section else ""
            sections += [
                "",
                f"{where} {was} outside any operation{inside}, its main thread at:",
            ]
            sections += one.stack.rstrip().splitlines()
    for failure in diagnosis.failures[:1]:
        if failure.traceback:
            sections += ["", f"rank {failure.rank} failed with:"]
            sections += failure.traceback.rstrip().splitlines()
    return sections


def describe_rank(diagnosis: Diagnosis, rank: int) -> list[Section]:
    """Describe a rank of a diagnosed job: its calls, why it did not report, its stack."""
    found = [one for one in diagnosis.ranks if one.rank == rank]
    if not found:
        return [f"rank {rank} is not among the ranks of job {diagnosis.job}"]
    [one] = found
    sections: list[Section] = [f"host {one.host}, pid {one.pid}"]
    for wait in one.waits:
        number = f" #{wait.sequence}" if wait.sequence else ""
        sections += [
            f"in {wait.operation}{number} of group {wait.group}"
            f" for {format_duration(wait.seconds)}",
            f"  {wait.signature or wait.operation}",
        ]
        if wait.waits_for:
            sections.append(f"  waits for {name_ranks(wait.waits_for)}")
        if wait.source:
            sections.append(f"  called at {wait.source}")
    if not one.waits:
        after = f", after {one.last}, for {format_duration(one.idle)}" if one.last else ""
        sections.append(f"in no operation{after}")
    if one.absence:
        sections.append(f"did not report: {one.absence}{_format_staleness(one)}")
    late = [straggler for straggler in diagnosis.stragglers if straggler.rank == rank]
    if late:
        sections += ["", "how late it begins calls:", _list_stragglers(late)]
    if one.stack:
        sections += ["", "its main thread:", *one.stack.rstrip().splitlines()]
    return sections


def _list_waits(diagnosis: Diagnosis) -> Table:
    """List in a row for each call that a rank is in, or for a rank outside any call."""
    with_label = any(wait.label for rank in diagnosis.ranks for wait in rank.waits)
    table = Table(
        ("RANK", "right"),
        ("HOST", "left"),
        ("PID", "right"),
        ("GROUP", "left"),
        ("SEQ", "right"),
        ("IN", "left"),
        ("SINCE", "right"),
        ("WAITS FOR", "left"),
        ("LABEL", "left"),
        ("LINE", "left"),
        wide=("HOST", "PID") if with_label else ("HOST", "PID", "LABEL"),
    )
    for rank in diagnosis.ranks:
        who = (str(rank.rank), rank.host, str(rank.pid))
        for at, wait in enumerate(rank.waits):
            table.add_row(
                *(who if at == 0 else [""] * len(who)),
                wait.group,
                str(wait.sequence) if wait.sequence else "-",
                wait.signature or wait.operation,
                format_duration(wait.seconds),
                format_ranks(wait.waits_for) or "-",
                wait.label or "-",
                wait.source or "-",
            )
        if not rank.waits:
            since = format_duration(rank.idle) if rank.last else "-"
            doing = f"no operation, after {rank.last}" if rank.last else "no operation yet"
            if rank.gone == "lost" and rank.absence and not rank.last:
                doing = "not known"
            if (inside := rank.section) is not None:
                doing = f"section {inside.name} for {format_duration(inside.elapsed)}: {doing}"
            table.add_row(*who, "-", "-", doing, since, "-", "-", "-")
    return table


def _format_staleness(rank: RankDiagnosis) -> str:
    """Format the age of a lost rank's shown state."""
    if rank.gone != "lost" or not (rank.waits or rank.last):
        return ""
    return f"; what is shown it told {format_duration(rank.stale)} before that"


def _format_positions(group: GroupDiagnosis) -> str:
    """Format the positions of a group's ranks, latest and behind."""
    said = []
    for one in group.positions:
        one_is, many_are = ("was", "were") if group.is_over else ("is", "are")
        many = f"{name_ranks(one.ranks)} {one_is if len(one.ranks) == 1 else many_are}"
        if one.operation:
            said.append(f"{many} in {one.operation} #{one.sequence}")
        elif one.sequence:
            said.append(f"{many} in none, after #{one.sequence}")
        else:
            has, have = ("had", "had") if group.is_over else ("has", "have")
            said.append(f"{many} in none, and {has if len(one.ranks) == 1 else have} begun none")
    if group.unknown:
        said.append(f"not known of {name_ranks(group.unknown)}")
    behind = f"; behind: {name_ranks(group.behind)}" if group.behind else ""
    when = ", at the end" if group.is_over else ""
    text = f"group {group.group}{when}: {', '.join(said)}{behind}"
    return Marked(text, "late") if behind else text


def _list_stragglers(late: Sequence[Straggler]) -> Table:
    table = Table(
        ("RANK", "right"),
        ("GROUP", "left"),
        ("MEDIAN", "right"),
        ("WORST", "right"),
        ("LAST IN", "right"),
        ("CALLS", "right"),
    )
    for one in late[:_MAX_STRAGGLERS]:
        table.add_row(
            str(one.rank),
            one.group,
            format_short(one.median),
            format_short(one.worst),
            str(one.last),
            str(one.calls),
        )
    return table


def describe_waits(group: GroupWaits) -> str:
    """Name the rank for which the others waited most of late; "": for none worth the words."""
    calls = sum(period.calls for period in group.periods)
    late: dict[int, tuple[int, float]] = {}
    for period in group.periods:
        for one in period.late:
            last, caused = late.get(one.rank, (0, 0.0))
            late[one.rank] = last + one.last, caused + one.caused
    if not late:
        return ""
    culprit = max(late, key=lambda rank: late[rank][1])
    last, caused = late[culprit]
    if caused < _WORTH_WORDS:
        return ""
    over = format_duration(max(period.ago for period in group.periods))
    return (
        f"group {group.group}, over the last {over}: rank {culprit} was last to begin {last} of "
        f"{calls} calls; the others waited {format_short(caused)} for it"
    )
