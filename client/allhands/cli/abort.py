"""`allhands abort`: release all ranks of a job, blocked or not.

Exit status: 0 once its members were told, 1 if there is no such job or nobody is in it.
"""

from typing import Annotated

import typer

from allhands.cli.options import CoordinatorOption, InsecureOption, describe_user, open_client


def abort_command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Which job.")],
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="What the ranks are told.")
    ] = "asked for at the command line",
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Abort a job: the calls of all its ranks fail with an error that names you and the reason.

    Processes are not ended: each program decides how to handle the error.
    """
    with open_client(coordinator, job, insecure=insecure) as control:
        told = control.abort(reason, by=describe_user())
    typer.echo(f"told {told} {'rank' if told == 1 else 'ranks'} of job {job}")
