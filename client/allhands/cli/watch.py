"""`allhands kv watch`, and `allhands watch`: changes of keys, as they come."""

from typing import Annotated

import typer

from allhands.cli.options import ClientOptions, JobArgument, takes_client
from allhands.cli.records import print_event
from allhands.cli.render import Output, make_output_option


@takes_client
def watch_command(
    job: JobArgument,
    key: Annotated[str, typer.Argument(metavar="KEY")],
    end: Annotated[
        str | None, typer.Argument(metavar="[END]", help="First key that is not watched.")
    ] = None,
    prefix: Annotated[bool, typer.Option("--prefix", help="Keys that begin with KEY.")] = False,
    rev: Annotated[
        int,
        typer.Option(
            "--rev", metavar="REVISION", min=0, help="First revision; else what comes from now on."
        ),
    ] = 0,
    prev_kv: Annotated[
        bool, typer.Option("--prev-kv", help="With what the key was before.")
    ] = False,
    count: Annotated[
        int,
        typer.Option("--count", metavar="N", min=0, help="Exit after so many events; 0: never."),
    ] = 0,
    output: Annotated[
        Output,
        make_output_option(
            *(Output.TABLE, Output.JSON, Output.YAML, Output.NAME), note="; json: a line an event"
        ),
    ] = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """Write each put and deletion of keys, until interrupted."""
    with client.open(job) as control:
        watch = control.watch(key, end=end, prefix=prefix, revision=rev, previous=prev_kv)
        with watch:
            for number, event in enumerate(watch, 1):
                print_event(event, output)
                if number == count:
                    return
