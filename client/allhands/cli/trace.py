"""`allhands trace`: what all ranks of a job did last, on one clock, for Perfetto or Chrome."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allhands.cli.coordinator import CoordinatorOption, InsecureOption, reach
from allhands.cli.diagnose import chosen, named
from allhands.escapes import one_line

if TYPE_CHECKING:
    from allhands.coordinator.client import Reports
    from allhands.errors import AllhandsError

_ALL = 1 << 20
_LISTED = 8


def trace_command(
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="Which one, where there are several.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.")
    ] = Path("trace.json"),
    last: Annotated[
        int, typer.Option("--last", min=1, help="Operations of each rank and group, at most.")
    ] = _ALL,
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Write what all ranks recorded as one trace; open it at https://ui.perfetto.dev."""
    with reach(coordinator, job, insecure=insecure) as control, named(control):
        found = control.reports(chosen(control), last)
    document = _document(found)
    shown = sum(event["ph"] == "X" for event in document["traceEvents"])
    if not shown:
        raise _nothing(found, output)
    _write(output, json.dumps(document))
    over = "" if found.job.ended is None else ", what is kept of them since the job has ended"
    typer.echo(f"{output}: {shown} operations of {len(found.told)} ranks{over}")
    for rank, why in sorted(found.absences.items()):
        typer.echo(f"rank {rank} is not in it: {one_line(why)}", err=True)
    if cut := [rank for rank, report in found.told.items() if report.is_cut]:
        typer.echo(f"ranks {cut} had more than they may send: the oldest are left out", err=True)


def _nothing(found: "Reports", output: Path) -> "AllhandsError":
    """Say why there is nothing to write."""
    from allhands.errors import NotFound

    why = [f"rank {rank}: {text}" for rank, text in sorted(found.absences.items())[:_LISTED]]
    if found.told:
        why.append(f"{len(found.told)} ranks have recorded no call")
    if len(found.absences) > _LISTED:
        why.append(f"and {len(found.absences) - _LISTED} ranks more")
    return NotFound(
        f"no call of job {found.job.job!r} ({found.job.state}) is known, and {output} was not "
        f"written: {'; '.join(why) or 'it has no members'}"
    )


def _write(output: Path, text: str) -> None:
    """Put a file in the place of an earlier one in one step: a failure leaves that as it is."""
    if output.exists() and not output.is_file():  # /dev/stdout, a pipe
        output.write_text(text, encoding="utf-8")
        return
    target = output.resolve()
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def _document(found: "Reports") -> dict[str, list[dict[str, object]]]:
    from allhands.recorder.trace import trace

    members = {one.rank: one for one in found.job.members}
    return trace(
        {
            rank: (members[rank].clock_offset or 0.0, report.now, report.operations)
            for rank, report in found.told.items()
        },
        {
            rank: f"rank {rank} ({one.host}, pid {one.pid}{', ' if one.label else ''}{one.label})"
            for rank, one in members.items()
        },
    )
