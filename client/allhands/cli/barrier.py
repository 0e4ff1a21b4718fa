"""`allhands barrier`: the named barriers of a job at which somebody waits."""

from dataclasses import asdict
from typing import Annotated, TypeAlias

import typer

from allhands.cli.options import CoordinatorOption, InsecureOption, describe_user, open_client
from allhands.cli.records import print_json, write_line
from allhands.cli.render import Output
from allhands.escapes import escape_line

barrier_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_Job: TypeAlias = Annotated[str, typer.Argument(metavar="JOB")]


@barrier_app.command("list")
def list_barriers(
    job: _Job,
    output: Annotated[
        Output, typer.Option("-o", "--output", help="Form of the output.")
    ] = Output.TABLE,
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """List the barriers at which somebody waits: who has come, and who is missing."""
    with open_client(coordinator, job, insecure=insecure) as control:
        found = control.barriers()
    if output is Output.JSON:
        print_json({"barriers": [{**asdict(one), "missing": one.missing} for one in found]})
        return
    for one in found:
        came = ", ".join(map(escape_line, one.arrived))
        missing = ", ".join(map(escape_line, one.missing)) or one.size - len(one.arrived)
        name = escape_line(one.name)
        write_line(f"{name}: {len(one.arrived)} of {one.size} came: {came}; missing: {missing}")


@barrier_app.command("cancel")
def cancel(
    job: _Job,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="What those who wait are told.")
    ] = "asked for at the command line",
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Let all who wait at a barrier fail, with an error that names you and the reason."""
    with open_client(coordinator, job, insecure=insecure) as control:
        released = control.cancel_barrier(name, reason, by=describe_user())
    write_line(f"released {released} {'participant' if released == 1 else 'participants'}")
