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
from allhands.escapes import one_line
from allhands_proto.values import FailureStatus, GroupStatus, OperationStatus

_FEW = 8
_FAILURES = 4
_LONGEST = 300
_RANKED = 16
"""Rows of the ranking: who is never late is of no interest."""
_WIDE = 2000  # columns: text that goes to a file or a pipe is not wrapped


def plain(renderable: RenderableType) -> str:
    """Draw without colour, as wide as need be, without spaces or newlines at the ends."""
    out = io.StringIO()
    Console(file=out, width=_WIDE, color_system=None).print(renderable)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def jobs_table(jobs: Sequence[JobStatus]) -> RenderableType:
    """Draw every job, one below the other; or say that there is none."""
    if not jobs:
        return Text("no jobs")
    first, *others = (job_table(job) for job in jobs)
    return Group(first, *(Padding(other, (1, 0, 0, 0)) for other in others))


def job_table(job: JobStatus) -> RenderableType:
    """Draw the job's line, a row for each operation of each member, then who is gone and why."""
    lines: list[RenderableType] = [_headline(job), *_failures(job.failures)]
    if job.groups:
        named = ", ".join(f"{one.group} ({_ranges(one.ranks)})" for one in job.groups)
        lines.append(_cell(f"groups: {named}"))
    if job.members:
        lines.append(_members_table(job.members))
    return Group(*lines, *_reasons(job.members))


def group_table(job: JobStatus, group: GroupStatus) -> RenderableType:
    """Draw each rank of the group with its progress there; ranks that never joined too."""
    table = _columns(
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
        now = member.in_group(group.group) or OperationStatus(group.group, "", 0, 0, 0.0)
        _add_row(
            table,
            str(place),
            str(rank),
            member.host,
            str(member.pid),
            _standing(member),
            _ago(member.last_heartbeat),
            str(now.sequence),
            str(now.completed),
            now.operation or "-",
            _duration(now.elapsed) if now.operation else "-",
        )
    title = f"group {group.group} of job {job.job}: {len(group.ranks)} ranks, epoch {job.epoch}"
    known = [present[rank] for rank in group.ranks if rank in present]
    return Group(_cell(title), table, *_reasons(known))


def diagnosis_table(found: Diagnosis) -> RenderableType:
    """Draw who is behind, what each rank waits for, who is late, and where the idle ones are."""
    over = f"; it ended {_ago(found.ended)}" if found.ended is not None else ""
    how = found.state if found.ended is None else "failed" if found.has_failed else "ended well"
    lines: list[RenderableType] = [
        _cell(f"job {found.job}: {how}{over}"),
        *_failures(found.failures),
    ]
    told = [group for group in found.groups if group.positions or group.unknown]
    lines += [_cell(_positions(group)) for group in told]
    table = _columns(
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
    for rank in found.ranks:
        who = (str(rank.rank), rank.host, str(rank.pid))
        for at, wait in enumerate(rank.waits):
            _add_row(
                table,
                *(who if at == 0 else [""] * len(who)),
                wait.group,
                str(wait.sequence) if wait.sequence else "-",
                wait.signature or wait.operation,
                _duration(wait.seconds),
                _ranges(wait.waits_for) or "-",
                wait.label or "-",
                wait.source or "-",
            )
        if not rank.waits:
            since = _duration(rank.idle) if rank.last else "-"
            doing = f"no operation, after {rank.last}" if rank.last else "no operation yet"
            if rank.gone == "lost" and rank.absence and not rank.last:
                doing = "not known"
            _add_row(table, *who, "-", "-", doing, since, "-", "-", "-")
    lines.append(table)
    silent = [one for one in found.ranks if one.absence]
    lines += [
        _cell(f"rank {one.rank} did not report: {one.absence}{_stale(one)}") for one in silent
    ]
    if found.stragglers:
        lines += [Text(), _cell("latest to begin its calls first:"), _stragglers(found.stragglers)]
    for one in found.ranks:
        if not one.waits and one.stack:
            was = "was" if one.gone else "is"
            lines += [
                Text(),
                _cell(f"rank {one.rank} {was} outside any operation, its main thread at:"),
            ]
            lines += [_cell(line) for line in one.stack.rstrip().splitlines()]
    for failure in found.failures[:1]:
        if failure.traceback:
            lines += [Text(), _cell(f"rank {failure.rank} failed with:")]
            lines += [_cell(line) for line in failure.traceback.rstrip().splitlines()]
    return Group(*lines)


def _stale(rank: RankDiagnosis) -> str:
    """Say how old it is what is shown of a lost rank."""
    if rank.gone != "lost" or not (rank.waits or rank.last):
        return ""
    return f"; what is shown it told {_duration(rank.stale)} before that"


def _positions(group: GroupDiagnosis) -> str:
    """Say who is where in a group, and who is behind."""
    said = []
    for one in group.positions:
        one_is, many_are = ("was", "were") if group.is_over else ("is", "are")
        many = f"{_many(one.ranks)} {one_is if len(one.ranks) == 1 else many_are}"
        if one.operation:
            said.append(f"{many} in {one.operation} #{one.sequence}")
        elif one.sequence:
            said.append(f"{many} in none, after #{one.sequence}")
        else:
            has, have = ("had", "had") if group.is_over else ("has", "have")
            said.append(f"{many} in none, and {has if len(one.ranks) == 1 else have} begun none")
    if group.unknown:
        said.append(f"not known of {_many(group.unknown)}")
    behind = f"; behind: {_many(group.behind)}" if group.behind else ""
    when = ", at the end" if group.is_over else ""
    return f"group {group.group}{when}: {', '.join(said)}{behind}"


def _many(ranks: Sequence[int]) -> str:
    """Name ranks, and where they are many how many."""
    listed = f"rank{'' if len(ranks) == 1 else 's'} {_ranges(ranks)}"
    return f"{len(ranks)} ranks ({_ranges(ranks)})" if len(ranks) > _FEW else listed


def _stragglers(late: Sequence[Straggler]) -> Table:
    table = _columns(
        ("RANK", "right"),
        ("GROUP", "left"),
        ("MEDIAN", "right"),
        ("WORST", "right"),
        ("LAST IN", "right"),
        ("CALLS", "right"),
    )
    for one in late[:_RANKED]:
        _add_row(
            table,
            str(one.rank),
            one.group,
            _short(one.median),
            _short(one.worst),
            str(one.last),
            str(one.calls),
        )
    return table


def _headline(job: JobStatus) -> Text:
    size = f"world size {job.world_size}" if job.world_size else "world size not agreed yet"
    joined = sum(member.state == "joined" for member in job.members)
    keys = f"{job.keys} key{'' if job.keys == 1 else 's'}"
    over = "" if job.ended is None else f", ended {_ago(job.ended)}"
    return _cell(
        f"job {job.job}: {job.state}, epoch {job.epoch}, {size}, {joined} joined, {keys}{over}"
    )


def _failures(failures: Sequence[FailureStatus]) -> list[Text]:
    """Say what failed first, and what after that."""
    said = []
    for at, one in enumerate(failures[:_FAILURES]):
        said.append(_cell(f"{'then' if at else 'failed first'}: {_brief(one.text)}"))
    if more := len(failures) - len(said):
        said.append(_cell(f"and {more} failure{'' if more == 1 else 's'} more"))
    return said


def _brief(text: str) -> str:
    first = text.partition("\n")[0]
    return first if len(first) <= _LONGEST else f"{first[: _LONGEST - 1]}…"


def _members_table(members: Iterable[MemberStatus]) -> Table:
    table = _columns(
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
            _standing(member),
            _ago(member.last_heartbeat),
        )
        first, *others = _shown(member)
        _add_row(table, *who, *_operation(first), _late(member, first))
        for other in others:
            _add_row(table, *[""] * len(who), *_operation(other), _late(member, other))
    return table


def _standing(member: MemberStatus) -> str:
    """Return the state of a member, or what it is while it is silent."""
    return member.condition if member.state == "joined" and member.condition else member.state


def _shown(member: MemberStatus) -> Sequence[OperationStatus | None]:
    """Choose the operations that a member is in; else where it was last; else nothing."""
    if member.state == "joined":
        busy = [one for one in member.operations if one.operation]
        if busy:
            return busy
    latest = min(member.operations, key=lambda one: one.elapsed, default=None)
    return [latest]


def _operation(one: OperationStatus | None) -> tuple[str, str, str, str]:
    if one is None:
        return "-", "-", "-", "-"
    return one.group, one.operation or "-", str(one.sequence), _duration(one.elapsed)


def _late(member: MemberStatus, one: OperationStatus | None) -> str:
    late = None if one is None else member.late_in(one.group)
    return "-" if late is None else _short(late.median)


def _reasons(members: Iterable[MemberStatus]) -> list[Text]:
    """Say in a line each why members are gone or silent: a column would be far too wide."""
    told = [
        f"rank {one.rank} {one.state}: {one.reason}" if one.reason else one.condition_text
        for one in members
        if one.reason or (one.state == "joined" and one.condition)
    ]
    return [_cell(line) for line in told]


def _add_row(table: Table, *cells: str) -> None:
    table.add_row(*map(_cell, cells))


def _cell(text: str) -> Text:
    """Show a text as it is: much of it came from the network, and a terminal obeys what it reads.

    `Text` keeps rich from taking brackets for markup.
    """
    return Text(one_line(text))


def _columns(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, side in columns:
        table.add_column(name, justify="right" if side == "right" else "left", overflow="fold")
    return table


def _ago(elapsed: float) -> str:
    return f"{_duration(elapsed)} ago"


def _duration(elapsed: float) -> str:
    """Write a length of time as people read it: 0.4 s, 12.0 s, 3 m 05 s, 2 h 07 m."""
    if elapsed < 60:
        return f"{elapsed:.1f} s"
    minutes, rest = divmod(int(elapsed), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} m"


def _short(elapsed: float) -> str:
    """Write a short time as people read it: 12 us, 3.4 ms, 1.2 s."""
    if elapsed < 0.0009995:
        return f"{elapsed * 1e6:.0f} us"
    if elapsed < 0.9995:
        return f"{elapsed * 1e3:.1f} ms"
    return _duration(elapsed)


def _ranges(ranks: Sequence[int]) -> str:
    """Write 0, 1, 2, 5 as "0-2,5"; neighbours that do not ascend by one stay apart."""
    runs = [
        [rank for _, rank in run]
        for _, run in groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0])
    ]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
