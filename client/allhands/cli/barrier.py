"""`allhands barrier`: the named barriers of a job at which somebody waits."""

from dataclasses import asdict
from typing import Annotated

import typer

from allhands.cli.options import ClientOptions, JobArgument, describe_user, takes_client
from allhands.cli.records import write_line
from allhands.cli.render import Output, make_output_option, print_document, print_names
from allhands.escapes import escape_line

barrier_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@barrier_app.command("list")
@takes_client
def list_barriers(
    job: JobArgument,
    output: Annotated[
        Output, make_output_option(Output.TABLE, Output.JSON, Output.YAML, Output.NAME)
    ] = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """List the barriers at which somebody waits: who has come, and who is missing."""
    with client.open(job) as control:
        found = control.barriers()
    if output.is_document:
        barriers = [{**asdict(one), "missing": one.missing} for one in found]
        print_document("BarrierList", {"barriers": barriers}, output)
        return
    if output is Output.NAME:
        print_names(one.name for one in found)
        return
    for one in found:
        came = ", ".join(map(escape_line, one.arrived))
        missing = ", ".join(map(escape_line, one.missing)) or one.size - len(one.arrived)
        name = escape_line(one.name)
        write_line(f"{name}: {len(one.arrived)} of {one.size} came: {came}; missing: {missing}")


@barrier_app.command("cancel")
@takes_client
def cancel(
    job: JobArgument,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="What those who wait are told.")
    ] = "asked for at the command line",
    output: Annotated[
        Output, make_output_option(Output.TABLE, Output.JSON, Output.YAML)
    ] = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """Let all who wait at a barrier fail, with an error that names you and the reason."""
    with client.open(job) as control:
        released = control.cancel_barrier(name, reason, by=describe_user())
    if output.is_document:
        fields = {"name": name, "reason": reason, "released_participants": released}
        print_document("BarrierCancellation", fields, output)
        return
    write_line(f"released {released} {'participant' if released == 1 else 'participants'}")
