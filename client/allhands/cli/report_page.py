"""The page of `allhands report`: numbers and lines of a job, from what is known of it. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median

from allhands.coordinator.analysis import RankReport
from allhands.coordinator.diagnosis import Diagnosis, describe_waits
from allhands.coordinator.event_calls import JobEvent
from allhands.coordinator.sections import format_duration, format_short
from allhands.coordinator.stalls import describe_stall, list_stalls
from allhands.coordinator.status import JobStatus, MemberStatus
from allhands.recorder.record import OperationRecord
from allhands_proto.quick_dataclass import dataclass
from allhands_proto.statuses import FailureStatus, GroupWaits

SLOWEST = 20
MOST_RANKS = 16
MOST_EVENTS = 500
MOST_SECTIONS = 20
WIDTH, HEIGHT = 640, 120
"""Of a chart, in pixels."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Two lines over time: the mean and the worst of each period."""

    mean: str
    """Points of an SVG polyline, in a box of WIDTH times HEIGHT."""
    worst: str
    top: str
    """Value at the upper edge, as text."""
    begin: str
    """Time at the left edge, as text; the right edge is now."""


@dataclass(frozen=True, slots=True)
class RankRow:
    """A rank that a group waited for."""

    rank: int
    last: int
    caused: str
    waited: str
    share: float
    """Of the rank that the group waited for most, percent."""


@dataclass(frozen=True, slots=True)
class GroupPart:
    """What the page says on the waits in a group."""

    name: str
    calls: int
    sentence: str
    chart: Chart | None
    ranks: tuple[RankRow, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table, as text."""

    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReportPage:
    """All that the template shows; texts are not escaped yet."""

    job: str
    headline: str
    made_at: str
    stalls: tuple[str, ...]
    failures: tuple[str, ...]
    verdicts: tuple[str, ...]
    ranks: tuple[Row, ...]
    groups: tuple[GroupPart, ...]
    bandwidths: tuple[Row, ...]
    slowest: tuple[Row, ...]
    sections: tuple[Row, ...]
    events: tuple[Row, ...]
    notes: tuple[str, ...]


def make_page(
    status: JobStatus,
    diagnosis: Diagnosis,
    reports: Mapping[int, RankReport],
    events: Sequence[JobEvent],
    now: float,
) -> ReportPage:
    """Return the page of a job at a moment, `now` in seconds since 1970."""
    records = [(rank, one) for rank, report in reports.items() for one in report.operations]
    notes = [
        f"rank {one.rank} did not report: {one.absence}" for one in diagnosis.ranks if one.absence
    ]
    if cut := sorted(rank for rank, report in reports.items() if report.is_cut):
        notes.append(f"ranks {cut} had more calls than they may send: the oldest are left out")
    over = "" if status.ended is None else f" {format_duration(status.ended)} ago"
    ranks = f"{len(status.members)} rank{'' if len(status.members) == 1 else 's'}"
    return ReportPage(
        job=status.job,
        headline=f"{status.state}{over}; {ranks}, epoch {status.epoch}",
        made_at=_format_time(now),
        stalls=tuple(map(describe_stall, list_stalls(status.members, status.groups))),
        failures=tuple(_list_failures(status.failures)),
        verdicts=tuple(one.text for one in events if one.kind == "verdict"),
        ranks=tuple(_describe_rank(one, diagnosis) for one in status.members),
        groups=tuple(map(_describe_group, diagnosis.waits)),
        bandwidths=tuple(_list_bandwidths(one for _, one in records)),
        slowest=tuple(_list_slowest(records)),
        sections=tuple(_list_sections(reports)),
        events=tuple(
            Row((_format_time(one.time), one.kind, one.state, one.text, one.by))
            for one in events[-MOST_EVENTS:]
        ),
        notes=tuple(notes),
    )


def _list_failures(failures: Sequence[FailureStatus]) -> Iterable[str]:
    """Yield the text of the first failure, and the first lines of those behind it."""
    for at, one in enumerate(failures):
        yield one.text.partition("\n")[0] if at else one.text


def _describe_rank(member: MemberStatus, diagnosis: Diagnosis) -> Row:
    known = next((one for one in diagnosis.ranks if one.rank == member.rank), None)
    doing = "" if known is None else known.last and f"no call, after {known.last}"
    if known is not None and known.waits:
        first = known.waits[0]
        since = format_duration(first.seconds)
        doing = f"{first.operation} #{first.sequence} of {first.group} for {since}"
    section = "" if known is None or known.section is None else known.section.name
    state = member.condition or member.state
    label = f"{member.rank} ({member.label})" if member.label else str(member.rank)
    reason = member.reason.partition("\n")[0]
    return Row((label, member.host, str(member.pid), state, doing, section, reason))


def _describe_group(waits: GroupWaits) -> GroupPart:
    most = max((one.caused for one in waits.ranks), default=0.0) or 1.0
    return GroupPart(
        name=waits.group,
        calls=waits.calls,
        sentence=describe_waits(waits),
        chart=_draw_skew(waits),
        ranks=tuple(
            RankRow(
                one.rank,
                one.last,
                format_short(one.caused),
                format_short(one.waited),
                round(100 * one.caused / most, 1),
            )
            for one in waits.ranks[:MOST_RANKS]
        ),
    )


def _draw_skew(waits: GroupWaits) -> Chart | None:
    """Draw the skew of a group's calls over time; None: it is known of less than two periods."""
    periods = [one for one in waits.periods if one.calls]
    if len(periods) < 2:
        return None
    oldest = max(one.ago for one in periods)
    top = max(one.worst for one in periods) or 1e-9

    def place(ago: float, value: float) -> str:
        return f"{WIDTH * (1 - ago / oldest):.1f},{HEIGHT * (1 - value / top):.1f}"

    return Chart(
        mean=" ".join(place(one.ago, one.skew / one.calls) for one in periods),
        worst=" ".join(place(one.ago, one.worst) for one in periods),
        top=format_short(top),
        begin=f"{format_duration(oldest)} ago",
    )


def _list_bandwidths(records: Iterable[OperationRecord]) -> Iterable[Row]:
    """Return a row for each group and operation: calls, median time, median bytes a second."""
    found: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for one in records:
        if one.outcome == "ok" and one.nbytes and one.started and one.finished > one.started:
            seconds = (one.finished - one.started) / 1e9
            found.setdefault((one.group, one.operation), []).append((seconds, one.nbytes))
    for (group, operation), calls in sorted(found.items()):
        rate = median(nbytes / seconds for seconds, nbytes in calls)
        yield Row(
            (
                group,
                operation,
                f"{len(calls):,}",
                _format_bytes(median(nbytes for _, nbytes in calls)),
                format_short(median(seconds for seconds, _ in calls)),
                f"{_format_bytes(rate)}/s",
            )
        )


def _list_slowest(records: Iterable[tuple[int, OperationRecord]]) -> Iterable[Row]:
    ended = [(one.finished - one.started, rank, one) for rank, one in records if one.finished]
    ended.sort(key=lambda found: -found[0])
    for nanoseconds, rank, one in ended[:SLOWEST]:
        call = f"{one.operation} #{one.sequence}" if one.sequence else one.operation
        yield Row(
            (
                format_short(nanoseconds / 1e9),
                str(rank),
                call,
                one.group,
                _format_bytes(one.nbytes),
                one.outcome,
                one.label,
                one.source,
            )
        )


def _list_sections(reports: Mapping[int, RankReport]) -> Iterable[Row]:
    """Return a row for each section: entries, ranks, seconds in all and at most."""
    found: dict[str, list[tuple[int, float]]] = {}
    for rank, report in reports.items():
        for one in report.sections:
            end = one.finished / 1e9 if one.finished else report.now
            found.setdefault(one.name, []).append((rank, max(end - one.started / 1e9, 0.0)))
    total = {name: sum(seconds for _, seconds in times) for name, times in found.items()}
    for name in sorted(total, key=lambda one: -total[one])[:MOST_SECTIONS]:
        times = found[name]
        longest = max(times, key=lambda one: one[1])
        ranks = len({rank for rank, _ in times})
        yield Row(
            (
                name,
                f"{len(times):,}",
                str(ranks),
                format_short(total[name] / len(times)),
                f"{format_short(longest[1])} (rank {longest[0]})",
                format_duration(total[name]),
            )
        )


def _format_bytes(count: float) -> str:
    """Format a number of bytes: 8 B, 1.5 KiB, 64.0 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"


def _format_time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%SZ}"
