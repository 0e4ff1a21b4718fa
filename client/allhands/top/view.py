"""Rows of `allhands top`: texts for the jobs, the groups of a job, and its ranks."""

import enum
from collections.abc import Callable, Mapping, Sequence

from allhands.coordinator.sections import format_duration, format_short
from allhands.coordinator.stalls import count_calls, describe_stall, find_stall, list_stalls
from allhands.coordinator.status import JobStatus, MemberStatus, sort_jobs
from allhands.escapes import escape_line
from allhands.runtime.sections import SectionPosition
from allhands.top.rates import CallRates
from allhands_proto.quick_dataclass import dataclass
from allhands_proto.statuses import GroupStatus, OperationStatus

_LEVELS = "▁▂▃▄▅▆▇█"


class Tone(enum.Enum):
    """The meaning of a row, shown as a colour where there are colours."""

    PLAIN = "plain"
    WARNING = "warning"
    FAILURE = "failure"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: its key, its cells, and its tone."""

    key: str
    cells: tuple[str, ...]
    tone: Tone = Tone.PLAIN


class Order(enum.Enum):
    """The order of the ranks of a job."""

    RANK = "rank"
    SINCE = "longest in a call"
    LATE = "latest to begin"

    def follow(self) -> "Order":
        """Return the next order."""
        orders = list(Order)
        return orders[(orders.index(self) + 1) % len(orders)]


JOB_COLUMNS = ("JOB", "STATE", "RANKS", "CALLS/S", "LATEST", "NOW")
GROUP_COLUMNS = ("GROUP", "RANKS", "CALL", "CALLS/S", "LAST MINUTE", "LATEST", "NOW")
RANK_COLUMNS = ("RANK", "HOST", "PID", "STATE", "BEAT", "CALL", "SINCE", "LATE", "OPERATION")


def list_jobs(jobs: Sequence[JobStatus], rates: CallRates) -> list[Row]:
    """Make a row for each job: jobs with members first, ended ones last."""
    rows = []
    for job in sort_jobs(jobs):
        known = [rates.get_rate(job, group.group) for group in job.groups]
        total = sum(rate for rate in known if rate is not None)
        joined = sum(member.state == "joined" for member in job.members)
        size = job.world_size or "?"
        rows.append(
            Row(
                job.job,
                (
                    escape_line(job.job),
                    job.state,
                    f"{joined}/{size}",
                    format_rate(total if any(rate is not None for rate in known) else None),
                    _name_latest(job, None),
                    _say_now(job),
                ),
                _get_job_tone(job),
            )
        )
    return rows


def list_groups(job: JobStatus, rates: CallRates) -> list[Row]:
    """Make a row for each group of a job, in the order of the job."""
    rows = []
    for group in job.groups:
        stall = find_stall(job.members, group)
        rows.append(
            Row(
                group.group,
                (
                    escape_line(group.group),
                    str(len(group.ranks)),
                    str(count_calls(job.members, group.group)),
                    format_rate(rates.get_rate(job, group.group)),
                    draw_history(rates.get_history(job, group.group)),
                    _name_latest(job, group.group),
                    _name_operation(job, group),
                ),
                Tone.PLAIN if stall is None else Tone.WARNING,
            )
        )
    return rows


def list_ranks(job: JobStatus, order: Order) -> list[Row]:
    """Make a row for each member of a job: its current call, or the last."""
    stalls = list_stalls(job.members, job.groups)
    rows = []
    for member in sorted(job.members, key=_ORDERS[order]):
        now = _choose_operation(member)
        late = max((one.median for one in member.lateness), default=None)
        awaited = any(member.rank in stall.missing for stall in stalls)
        rows.append(
            Row(
                str(member.rank),
                (
                    str(member.rank),
                    escape_line(member.host),
                    str(member.pid),
                    "awaited" if awaited and _is_there(member) else _get_state(member),
                    format_duration(member.last_heartbeat),
                    str(now.sequence) if now else "-",
                    format_duration(now.elapsed) if now else "-",
                    "-" if late is None else format_short(late),
                    _describe_operation(now, member.section),
                ),
                _get_member_tone(member, awaited),
            )
        )
    return rows


def format_rate(rate: float | None) -> str:
    """Format calls a second in at most five characters."""
    if rate is None:
        return "-"
    if rate >= 999_500:
        return f"{rate / 1e6:.1f}M"
    if rate >= 9_999.5:
        return f"{rate / 1e3:.0f}k"
    return f"{rate:.0f}" if rate >= 9.95 or rate == 0 else f"{rate:.1f}"


def draw_history(rates: Sequence[float], width: int = 12) -> str:
    """Draw rates as bars, one character each, from 0 to the highest; the newest at the right."""
    if not rates:
        return ""
    size = max(1, -(-len(rates) // width))
    newest = list(rates)[::-1]
    means = [
        sum(part) / len(part)
        for at in range(0, len(newest), size)
        if (part := newest[at : at + size])
    ]
    most = max(means)
    if most <= 0:
        return _LEVELS[0] * len(means)
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[round(mean / most * top)] for mean in reversed(means))


def _say_now(job: JobStatus) -> str:
    """Describe what a job is doing, the worst first."""
    if job.failures:
        return escape_line(job.failures[0].text.partition("\n")[0])
    if stalls := list_stalls(job.members, job.groups):
        return describe_stall(stalls[0])
    if job.ended is not None:
        return f"ended {format_duration(job.ended)} ago"
    return next((said for group in job.groups if (said := _name_operation(job, group)) != "-"), "-")


def _name_operation(job: JobStatus, group: GroupStatus) -> str:
    """Name the call that most recently began in a group."""
    latest = count_calls(job.members, group.group)
    found = (member.find_operation(group.group) for member in job.members)
    inside = [one for one in found if one and one.operation and one.sequence in (0, latest)]
    return inside[0].operation if inside else "-"


def _name_latest(job: JobStatus, group: str | None) -> str:
    """Name the rank that usually begins last, and how late; of all groups, or of one."""
    late = [
        (one.median, member.rank)
        for member in job.members
        for one in member.lateness
        if group in (None, one.group) and one.calls
    ]
    if not late:
        return "-"
    median, rank = max(late)
    return f"{format_short(median)} r{rank}"


def _choose_operation(member: MemberStatus) -> OperationStatus | None:
    inside = [one for one in member.operations if one.operation]
    return max(inside, key=lambda one: one.elapsed, default=None) or min(
        member.operations, key=lambda one: one.elapsed, default=None
    )


def _describe_operation(now: OperationStatus | None, section: SectionPosition | None) -> str:
    if section is not None and (now is None or not now.operation):
        return f"section {escape_line(section.name)}"
    if now is None:
        return "-"
    where = "" if now.group == "world" else f" of {escape_line(now.group)}"
    return f"{now.operation}{where}" if now.operation else f"none{where}"


def _get_state(member: MemberStatus) -> str:
    return member.condition if member.state == "joined" and member.condition else member.state


def _is_there(member: MemberStatus) -> bool:
    return member.state == "joined" and not member.condition


def _get_member_tone(member: MemberStatus, awaited: bool) -> Tone:
    match member.state:
        case "lost":
            return Tone.FAILURE
        case "left":
            return Tone.OVER
        case _:
            return Tone.WARNING if awaited or member.condition else Tone.PLAIN


def _get_job_tone(job: JobStatus) -> Tone:
    if job.failures:
        return Tone.FAILURE
    if job.ended is not None:
        return Tone.OVER
    if job.state == "degraded" or list_stalls(job.members, job.groups):
        return Tone.WARNING
    return Tone.PLAIN


def _order_by_time_in_call(member: MemberStatus) -> tuple[float, ...]:
    inside = max((one.elapsed for one in member.operations if one.operation), default=-1.0)
    return -inside, member.rank


def _order_by_lateness(member: MemberStatus) -> tuple[float, ...]:
    return -max((one.median for one in member.lateness), default=-1.0), member.rank


_ORDERS: Mapping[Order, Callable[[MemberStatus], tuple[float, ...]]] = {
    Order.RANK: lambda member: (member.rank,),
    Order.SINCE: _order_by_time_in_call,
    Order.LATE: _order_by_lateness,
}
