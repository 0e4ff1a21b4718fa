"""`allhands abort`: release all ranks of a job, blocked or not.

Exit status: 0 once its members were told, 1 if there is no such job or nobody is in it.
"""

from typing import Annotated

import typer

from allhands.cli.options import ClientOptions, JobArgument, describe_user, takes_client
from allhands.cli.render import Output, make_output_option, print_document


@takes_client
def abort_command(
    job: JobArgument,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="What the ranks are told.")
    ] = "asked for at the command line",
    output: Annotated[
        Output, make_output_option(Output.TABLE, Output.JSON, Output.YAML)
    ] = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """Abort a job: the calls of all its ranks fail with an error that names you and the reason.

    Processes are not ended: each program decides how to handle the error.
    """
    with client.open(job) as control:
        told = control.abort(reason, by=describe_user())
    if output.is_document:
        print_document("Abort", {"job": job, "reason": reason, "told_ranks": told}, output)
        return
    typer.echo(f"told {told} {'rank' if told == 1 else 'ranks'} of job {job}")
