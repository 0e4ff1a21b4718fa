"""Statuses as tables for people; how they are coloured or refreshed is up to the terminal."""

import io
from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from allhands.coordinator.diagnosis import Diagnosis, GroupDiagnosis, RankDiagnosis, Straggler
from allhands.coordinator.status import JobStatus, MemberStatus
from allhands.escapes import escape_line
from allhands_proto.statuses import FailureStatus, GroupStatus, OperationStatus

_MAX_LISTED = 8
_MAX_FAILURES = 4
_MAX_TEXT = 300
_MAX_STRAGGLERS = 16
"""Rows of the ranking: who is never late is of no interest."""
_UNWRAPPED_WIDTH = 2000  # columns: text that goes to a file or a pipe is not wrapped


def render_plain(renderable: RenderableType) -> str:
    """Draw without colour, as wide as need be, without spaces or newlines at the ends."""
    out = io.StringIO()
    Console(file=out, width=_UNWRAPPED_WIDTH, color_system=None).print(renderable)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def draw_jobs(jobs: Sequence[JobStatus]) -> RenderableType:
    """Draw every job, one below the other, or the text for none."""
    if not jobs:
        return Text("no jobs")
    first, *others = (draw_job(job) for job in jobs)
    return Group(first, *(Padding(other, (1, 0, 0, 0)) for other in others))


def draw_job(job: JobStatus) -> RenderableType:
    """Draw a job: its line, a row per operation of each member, then lost and departed ranks."""
    lines: list[RenderableType] = [_format_headline(job), *_format_failures(job.failures)]
    if job.groups:
        named = ", ".join(f"{one.group} ({_format_ranks(one.ranks)})" for one in job.groups)
        lines.append(_make_cell(f"groups: {named}"))
    if job.members:
        lines.append(_draw_members(job.members))
    return Group(*lines, *_format_reasons(job.members))


def draw_group(job: JobStatus, group: GroupStatus) -> RenderableType:
    """Draw each rank of the group with its progress, including ranks that never joined."""
    table = _make_table(
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
    )
    present = {member.rank: member for member in job.members}
    for place, rank in enumerate(group.ranks):
        member = present.get(rank)
        if member is None:
            _add_row(table, str(place), str(rank), "-", "-", "never joined", *["-"] * 5)
            continue
        now = member.find_operation(group.group) or OperationStatus(group.group, "", 0, 0, 0.0)
        _add_row(
            table,
            str(place),
            str(rank),
            member.host,
            str(member.pid),
            _get_state(member),
            _format_ago(member.last_heartbeat),
            str(now.sequence),
            str(now.completed),
            now.operation or "-",
            _format_duration(now.elapsed) if now.operation else "-",
        )
    title = f"group {group.group} of job {job.job}: {len(group.ranks)} ranks, epoch {job.epoch}"
    known = [present[rank] for rank in group.ranks if rank in present]
    return Group(_make_cell(title), table, *_format_reasons(known))


def draw_diagnosis(diagnosis: Diagnosis) -> RenderableType:
    """Draw positions, waits, stragglers and the stacks of idle ranks."""
    over = f"; it ended {_format_ago(diagnosis.ended)}" if diagnosis.ended is not None else ""
    how = (
        diagnosis.state
        if diagnosis.ended is None
        else "failed"
        if diagnosis.has_failed
        else "ended well"
    )
    lines: list[RenderableType] = [
        _make_cell(f"job {diagnosis.job}: {how}{over}"),
        *_format_failures(diagnosis.failures),
    ]
    told = [group for group in diagnosis.groups if group.positions or group.unknown]
    lines += [_make_cell(_format_positions(group)) for group in told]
    lines.append(_draw_waits(diagnosis))
    silent = [one for one in diagnosis.ranks if one.absence]
    lines += [
        _make_cell(f"rank {one.rank} did not report: {one.absence}{_format_staleness(one)}")
        for one in silent
    ]
    if diagnosis.stragglers:
        lines += [
            Text(),
            _make_cell("latest to begin its calls first:"),
            _draw_stragglers(diagnosis.stragglers),
        ]
    for one in diagnosis.ranks:
        if not one.waits and one.stack:
            was = "was" if one.gone else "is"
            lines += [
                Text(),
                _make_cell(f"rank {one.rank} {was} outside any operation, its main thread at:"),
            ]
            lines += [_make_cell(line) for line in one.stack.rstrip().splitlines()]
    for failure in diagnosis.failures[:1]:
        if failure.traceback:
            lines += [Text(), _make_cell(f"rank {failure.rank} failed with:")]
            lines += [_make_cell(line) for line in failure.traceback.rstrip().splitlines()]
    return Group(*lines)


def _draw_waits(diagnosis: Diagnosis) -> Table:
    """Draw a row for each call that a rank is in, or for a rank outside any call."""
    table = _make_table(
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
    )
    for rank in diagnosis.ranks:
        who = (str(rank.rank), rank.host, str(rank.pid))
        for at, wait in enumerate(rank.waits):
            _add_row(
                table,
                *(who if at == 0 else [""] * len(who)),
                wait.group,
                str(wait.sequence) if wait.sequence else "-",
                wait.signature or wait.operation,
                _format_duration(wait.seconds),
                _format_ranks(wait.waits_for) or "-",
                wait.label or "-",
                wait.source or "-",
            )
        if not rank.waits:
            since = _format_duration(rank.idle) if rank.last else "-"
            doing = f"no operation, after {rank.last}" if rank.last else "no operation yet"
            if rank.gone == "lost" and rank.absence and not rank.last:
                doing = "not known"
            _add_row(table, *who, "-", "-", doing, since, "-", "-", "-")
    return table


def _format_staleness(rank: RankDiagnosis) -> str:
    """Format the age of a lost rank's shown state."""
    if rank.gone != "lost" or not (rank.waits or rank.last):
        return ""
    return f"; what is shown it told {_format_duration(rank.stale)} before that"


def _format_positions(group: GroupDiagnosis) -> str:
    """Format the positions of a group's ranks, latest and behind."""
    said = []
    for one in group.positions:
        one_is, many_are = ("was", "were") if group.is_over else ("is", "are")
        many = f"{_name_ranks(one.ranks)} {one_is if len(one.ranks) == 1 else many_are}"
        if one.operation:
            said.append(f"{many} in {one.operation} #{one.sequence}")
        elif one.sequence:
            said.append(f"{many} in none, after #{one.sequence}")
        else:
            has, have = ("had", "had") if group.is_over else ("has", "have")
            said.append(f"{many} in none, and {has if len(one.ranks) == 1 else have} begun none")
    if group.unknown:
        said.append(f"not known of {_name_ranks(group.unknown)}")
    behind = f"; behind: {_name_ranks(group.behind)}" if group.behind else ""
    when = ", at the end" if group.is_over else ""
    return f"group {group.group}{when}: {', '.join(said)}{behind}"


def _name_ranks(ranks: Sequence[int]) -> str:
    """Name ranks, or count them if there are many."""
    listed = f"rank{'' if len(ranks) == 1 else 's'} {_format_ranks(ranks)}"
    return f"{len(ranks)} ranks ({_format_ranks(ranks)})" if len(ranks) > _MAX_LISTED else listed


def _draw_stragglers(late: Sequence[Straggler]) -> Table:
    table = _make_table(
        ("RANK", "right"),
        ("GROUP", "left"),
        ("MEDIAN", "right"),
        ("WORST", "right"),
        ("LAST IN", "right"),
        ("CALLS", "right"),
    )
    for one in late[:_MAX_STRAGGLERS]:
        _add_row(
            table,
            str(one.rank),
            one.group,
            _format_short(one.median),
            _format_short(one.worst),
            str(one.last),
            str(one.calls),
        )
    return table


def _format_headline(job: JobStatus) -> Text:
    size = f"world size {job.world_size}" if job.world_size else "world size not agreed yet"
    joined = sum(member.state == "joined" for member in job.members)
    keys = f"{job.keys} key{'' if job.keys == 1 else 's'}"
    over = "" if job.ended is None else f", ended {_format_ago(job.ended)}"
    return _make_cell(
        f"job {job.job}: {job.state}, epoch {job.epoch}, {size}, {joined} joined, {keys}{over}"
    )


def _format_failures(failures: Sequence[FailureStatus]) -> list[Text]:
    """Format the failures of a job, first one first."""
    said = []
    for at, one in enumerate(failures[:_MAX_FAILURES]):
        said.append(_make_cell(f"{'then' if at else 'failed first'}: {_shorten(one.text)}"))
    if more := len(failures) - len(said):
        said.append(_make_cell(f"and {more} failure{'' if more == 1 else 's'} more"))
    return said


def _shorten(text: str) -> str:
    first = text.partition("\n")[0]
    return first if len(first) <= _MAX_TEXT else f"{first[: _MAX_TEXT - 1]}…"


def _draw_members(members: Iterable[MemberStatus]) -> Table:
    table = _make_table(
        ("RANK", "right"),
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
    )
    for member in members:
        who = (
            f"{member.rank} ({member.label})" if member.label else str(member.rank),
            member.host,
            str(member.pid),
            member.address,
            _get_state(member),
            _format_ago(member.last_heartbeat),
        )
        first, *others = _choose_operations(member)
        _add_row(table, *who, *_format_operation(first), _format_lateness(member, first))
        for other in others:
            _add_row(
                table, *[""] * len(who), *_format_operation(other), _format_lateness(member, other)
            )
    return table


def _get_state(member: MemberStatus) -> str:
    """Return a member's state, or its condition while silent."""
    return member.condition if member.state == "joined" and member.condition else member.state


def _choose_operations(member: MemberStatus) -> Sequence[OperationStatus | None]:
    """Return a member's operations under way, else its last operation, else None."""
    if member.state == "joined":
        busy = [one for one in member.operations if one.operation]
        if busy:
            return busy
    latest = min(member.operations, key=lambda one: one.elapsed, default=None)
    return [latest]


def _format_operation(one: OperationStatus | None) -> tuple[str, str, str, str]:
    if one is None:
        return "-", "-", "-", "-"
    return one.group, one.operation or "-", str(one.sequence), _format_duration(one.elapsed)


def _format_lateness(member: MemberStatus, one: OperationStatus | None) -> str:
    late = None if one is None else member.find_lateness(one.group)
    return "-" if late is None else _format_short(late.median)


def _format_reasons(members: Iterable[MemberStatus]) -> list[Text]:
    """Say in a line each why members are gone or silent: a column would be far too wide."""
    told = [
        f"rank {one.rank} {one.state}: {one.reason}" if one.reason else one.condition_text
        for one in members
        if one.reason or (one.state == "joined" and one.condition)
    ]
    return [_make_cell(line) for line in told]


def _add_row(table: Table, *cells: str) -> None:
    table.add_row(*map(_make_cell, cells))


def _make_cell(text: str) -> Text:
    """Make a cell of literal text, without terminal escapes from the network.

    `Text` keeps rich from taking brackets for markup.
    """
    return Text(escape_line(text))


def _make_table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, side in columns:
        table.add_column(name, justify="right" if side == "right" else "left", overflow="fold")
    return table


def _format_ago(elapsed: float) -> str:
    return f"{_format_duration(elapsed)} ago"


def _format_duration(elapsed: float) -> str:
    """Write a length of time as people read it: 0.4 s, 12.0 s, 3 m 05 s, 2 h 07 m."""
    if elapsed < 60:
        return f"{elapsed:.1f} s"
    minutes, rest = divmod(int(elapsed), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} m"


def _format_short(elapsed: float) -> str:
    """Format a short time for people: 12 us, 3.4 ms, 1.2 s."""
    if elapsed < 0.0009995:
        return f"{elapsed * 1e6:.0f} us"
    if elapsed < 0.9995:
        return f"{elapsed * 1e3:.1f} ms"
    return _format_duration(elapsed)


def _format_ranks(ranks: Sequence[int]) -> str:
    """Format ranks compactly: 0, 1, 2, 5 as "0-2,5"."""
    runs = [
        [rank for _, rank in run]
        for _, run in groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0])
    ]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
