"""`allhands elect`: leadership of a job's election, or the leaders as they come."""

import base64
from typing import TYPE_CHECKING, Annotated

import typer

from allhands.cli.holding import (
    FOR_LONG,
    Interrupted,
    TimeoutOption,
    interruptible,
    wait_for_signal,
)
from allhands.cli.options import ClientOptions, JobArgument, takes_client
from allhands.cli.records import write_line, write_value
from allhands.cli.render import Output, make_output_option, print_document
from allhands.escapes import escape_line

if TYPE_CHECKING:
    from allhands.coordinator.client import Control
    from allhands.coordinator.lock import Election


@takes_client
def elect_command(
    job: JobArgument,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    value: Annotated[
        str | None, typer.Argument(metavar="[VALUE]", help="What the leader says.")
    ] = None,
    listen: Annotated[
        bool, typer.Option("-l", "--listen", help="Write the leaders, and be none.")
    ] = False,
    ttl: Annotated[
        float,
        typer.Option(
            "--ttl",
            metavar="SECONDS",
            help="Seconds after which a leader that is gone is replaced.",
        ),
    ] = 10.0,
    timeout: TimeoutOption = FOR_LONG,
    output: Annotated[
        Output,
        make_output_option(Output.TABLE, Output.JSON, Output.YAML, note="; json: a line a leader"),
    ] = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """Lead an election until interrupted: writes key and value when this is the leader.

    With --listen: key and value of the leader, and of each new one.
    """
    if listen == (value is not None):
        raise typer.BadParameter("give a VALUE to lead with, or --listen to see who leads")
    with client.open(job) as control, interruptible():
        if value is None:
            _listen(control, name, output)
        else:
            _lead(control.election(name, ttl=ttl), value, timeout, output)


def _lead(election: "Election", value: str, timeout: float, output: Output) -> None:
    election.campaign(value, timeout=timeout)
    try:
        _print(election.key, value.encode(), election.revision, output)
        wait_for_signal(election.lost, f"leadership {election.key!r}")
    finally:
        if not election.is_lost:
            election.resign()


def _listen(control: "Control", name: str, output: Output) -> None:
    try:
        for leader in control.election(name).observe():
            _print(leader.key, leader.value, leader.revision, output)
    except Interrupted:
        return


def _print(key: str, value: bytes, revision: int, output: Output) -> None:
    if output.is_document:
        text = base64.b64encode(value).decode()
        fields = {"key": key, "value": text, "revision": revision}
        print_document("Leader", fields, output, in_stream=True)
    else:
        write_line(escape_line(key))
        write_value(value)
