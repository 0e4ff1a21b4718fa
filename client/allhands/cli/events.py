"""`allhands events`: what has happened to a job.

docs/output.md has the fields of its documents, `JobEvent`, of which each event is one.
"""

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from allhands.cli.documents import make_event_fields
from allhands.cli.options import ClientOptions, JobArgument, takes_client
from allhands.cli.records import write_line
from allhands.cli.render import Output, make_output_option, print_document

if TYPE_CHECKING:
    from allhands.coordinator.event_calls import JobEvent

_KIND_WIDTH = len("silent (unreachable)")
"""Columns of the longest kind with its state."""


@takes_client
def events_command(
    job: JobArgument,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on with those to come, until Ctrl-C.")
    ] = False,
    after: Annotated[
        int, typer.Option("--after", min=0, metavar="NUMBER", help="Only those behind this one.")
    ] = 0,
    output: Annotated[
        Output,
        make_output_option(Output.TABLE, Output.JSON, Output.YAML, note="; json: a line an event"),
    ] = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """Show what has happened to a job: who came, left or was lost, and why; aborts; refusals."""
    with client.open(job) as control, contextlib.suppress(KeyboardInterrupt):
        found = control.follow_events(after=after) if watch else control.events(after=after)
        for event in found:
            _print_event(event, output)


def _print_event(event: "JobEvent", output: Output) -> None:
    if output.is_document:
        print_document("JobEvent", make_event_fields(event), output, in_stream=True)
        return
    at = datetime.fromtimestamp(event.time, UTC)
    kind = f"{event.kind} ({event.state})" if event.state else event.kind
    by = f", by {event.by}" if event.by else ""
    write_line(f"{at:%Y-%m-%d %H:%M:%SZ}  {kind:<{_KIND_WIDTH}}  {event.text}{by}")
