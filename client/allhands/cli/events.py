"""`allhands events`: what has happened to a job.

With -o json each event is a line, an object with a version:

    {"version": 1, "number": int, "time": RFC 3339, UTC, "kind": str, "text": str,
     "rank": int or null, "state": str, "epoch": int (0: unchanged), "by": str}

Names are added, none is removed or given another meaning.
"""

import contextlib
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from allhands.cli.options import CoordinatorOption, InsecureOption, open_client
from allhands.cli.records import print_json, write_line
from allhands.cli.render import Output

if TYPE_CHECKING:
    from allhands.coordinator.event_calls import JobEvent


def events_command(
    job: Annotated[str, typer.Argument(metavar="JOB")],
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on with those to come, until Ctrl-C.")
    ] = False,
    after: Annotated[
        int, typer.Option("--after", min=0, metavar="NUMBER", help="Only those behind this one.")
    ] = 0,
    output: Annotated[
        Output, typer.Option("-o", "--output", help="Form of the output; json: a line an event.")
    ] = Output.TABLE,
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Show what has happened to a job: who came, left or was lost, and why; aborts; refusals."""
    with (
        open_client(coordinator, job, insecure=insecure) as control,
        contextlib.suppress(KeyboardInterrupt),
    ):
        found = control.follow_events(after=after) if watch else control.events(after=after)
        for event in found:
            _print_event(event, as_json=output is Output.JSON)


def _print_event(event: "JobEvent", *, as_json: bool) -> None:
    at = datetime.fromtimestamp(event.time, UTC)
    if as_json:
        time = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        print_json({**asdict(event), "time": time})
        return
    kind = f"{event.kind} ({event.state})" if event.state else event.kind
    by = f", by {event.by}" if event.by else ""
    write_line(f"{at:%Y-%m-%d %H:%M:%SZ}  {kind:<9}  {event.text}{by}")
