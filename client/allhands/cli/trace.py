"""`allhands trace`: recorded calls of all ranks on one clock, for Perfetto or Chrome."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allhands.cli.diagnose import choose_job, explain_not_found
from allhands.cli.options import AnyJobArgument, ClientOptions, takes_client
from allhands.cli.render import Output
from allhands.escapes import escape_line

if TYPE_CHECKING:
    from allhands.coordinator.job_reports import JobReports
    from allhands.errors import AllhandsError

_MAX_LAST = 1 << 20
_MAX_LISTED = 8


@takes_client
def trace_command(
    job: AnyJobArgument = None,
    file: Annotated[
        Path, typer.Option("--file", "-f", metavar="FILE", help="Where to write it.")
    ] = Path("trace.json"),
    old_file: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", hidden=True)
    ] = None,
    last: Annotated[
        int,
        typer.Option(
            "--last", metavar="N", min=1, help="Operations of each rank and group, at most."
        ),
    ] = _MAX_LAST,
    *,
    client: ClientOptions,
) -> None:
    """Write the recorded calls of all ranks as one trace; open it at https://ui.perfetto.dev."""
    output = _settle_file(file, old_file)
    with client.open(job) as control, explain_not_found(control):
        found = control.reports(choose_job(control), last)
    document = _make_document(found)
    sections = sum(len(report.sections) for report in found.reports.values())
    slices = sum(event["ph"] == "X" for event in document["traceEvents"])
    shown = slices - sections
    if not slices:
        raise _make_empty_error(found, output)
    write_file(output, json.dumps(document))
    over = "" if found.job.ended is None else ", what is kept of them since the job has ended"
    named = f" and {sections} sections" if sections else ""
    typer.echo(f"{output}: {shown} operations{named} of {len(found.reports)} ranks{over}")
    for rank, why in sorted(found.missing.items()):
        typer.echo(f"rank {rank} is not in it: {escape_line(why)}", err=True)
    if cut := [rank for rank, report in found.reports.items() if report.is_cut]:
        typer.echo(f"ranks {cut} had more than they may send: the oldest are left out", err=True)


def _settle_file(file: Path, old_file: Path | None) -> Path:
    """Return the file to write: `--file`, or `--output` as it was called before.

    Raises:
        typer.BadParameter: the older name has a format of other commands.
    """
    if old_file is None:
        return file
    refuse_format(old_file, "a trace has one format, and goes to a file")
    return old_file


def refuse_format(file: Path, why: str) -> None:
    """Refuse a format of other commands, which their `-o` takes, as the name of a file.

    Raises:
        typer.BadParameter: it is one.
    """
    if str(file) in {*Output}:
        raise typer.BadParameter(f"{why}: --file FILE, not -o {file}")


def _make_empty_error(found: "JobReports", output: Path) -> "AllhandsError":
    """Say why there is nothing to write."""
    from allhands.errors import NotFound

    why = [f"rank {rank}: {text}" for rank, text in sorted(found.missing.items())[:_MAX_LISTED]]
    if found.reports:
        why.append(f"{len(found.reports)} ranks have recorded no call")
    if len(found.missing) > _MAX_LISTED:
        why.append(f"and {len(found.missing) - _MAX_LISTED} ranks more")
    return NotFound(
        f"no call of job {found.job.job!r} ({found.job.state}) is known, and {output} was not "
        f"written: {'; '.join(why) or 'it has no members'}"
    )


def write_file(output: Path, text: str) -> None:
    """Replace a file atomically; a failure leaves the earlier content."""
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


def _make_document(found: "JobReports") -> dict[str, list[dict[str, object]]]:
    from allhands.recorder.trace import make_trace

    members = {one.rank: one for one in found.job.members}
    return make_trace(
        {
            rank: (members[rank].clock_offset or 0.0, report.now, report.operations)
            for rank, report in found.reports.items()
        },
        {
            rank: f"rank {rank} ({one.host}, pid {one.pid}{', ' if one.label else ''}{one.label})"
            for rank, one in members.items()
        },
        {rank: report.sections for rank, report in found.reports.items()},
    )
