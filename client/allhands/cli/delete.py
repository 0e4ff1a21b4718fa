"""`allhands delete`: delete jobs without members from the coordinator.

Exit status: 0 once all are deleted, 1 if a job does not exist or has members.
"""

from typing import Annotated

import typer

from allhands.cli.completion import complete_jobs
from allhands.cli.options import ClientOptions, describe_user, takes_client
from allhands.cli.render import Output, make_output_option, print_document


@takes_client
def delete_command(
    jobs: Annotated[
        list[str],
        typer.Argument(metavar="JOB...", help="Which jobs.", autocompletion=complete_jobs),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Also those with members, who are expelled.")
    ] = False,
    output: Annotated[
        Output, make_output_option(Output.TABLE, Output.JSON, Output.YAML)
    ] = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """Delete jobs: keys, queues, and the records for `diagnose` and `trace` after their end.

    A job that has members is refused: `allhands abort JOB` releases them. With --force they are
    expelled: their calls fail, and their processes are not ended.
    """
    with client.open(jobs[0]) as control:
        for job in jobs:
            expelled = control.delete_job(job, force=force, by=describe_user())
            if output.is_document:
                fields = {"job": job, "expelled_ranks": expelled}
                print_document("JobDeletion", fields, output, in_stream=True)
                continue
            ranks = f", and expelled {expelled} {'rank' if expelled == 1 else 'ranks'}"
            typer.echo(f"deleted job {job}{ranks if expelled else ''}")
