"""`allhands trace`: what all ranks of a job did last, on one clock, for Perfetto or Chrome."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allhands.cli.coordinator import CoordinatorOption, InsecureOption, reach
from allhands.cli.diagnose import chosen
from allhands.escapes import one_line

if TYPE_CHECKING:
    from allhands.control import Reports

_ALL = 1 << 20


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
    with reach(coordinator, job, insecure=insecure) as control:
        found = control.reports(chosen(control), last)
    document = _document(found)
    output.write_text(json.dumps(document), encoding="utf-8")
    shown = sum(event["ph"] == "X" for event in document["traceEvents"])
    typer.echo(f"{output}: {shown} operations of {len(found.told)} ranks")
    for rank, why in sorted(found.absences.items()):
        typer.echo(f"rank {rank} is not in it: {one_line(why)}", err=True)
    if cut := [rank for rank, report in found.told.items() if report.is_cut]:
        typer.echo(f"ranks {cut} had more than they may send: the oldest are left out", err=True)


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
