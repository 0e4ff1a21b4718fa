"""`allhands doctor`: what is wrong with this host and the way to the coordinator, and the fix.

Exit status: 0 nothing failed (warnings are no failures), 1 something did, 2 wrong usage. The JSON
form is stable: names are added, none is removed or given another meaning.

    {"version": 1,
     "findings": [{"status": "ok|warn|fail|skip", "what": str, "detail": str,
                   "fix": str (empty: nothing is to be done)}]}
"""

import os
from typing import Annotated

import typer

from allhands.cli.options import CoordinatorOption, InsecureOption
from allhands.cli.render import Output, show


def doctor_command(
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="Also connect to each rank of this job."),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--nproc",
            "-n",
            metavar="N",
            min=1,
            help="Ranks that are to run on this host; else LOCAL_WORLD_SIZE.",
        ),
    ] = None,
    output: Annotated[
        Output, typer.Option("--output", "-o", help="How to show it.")
    ] = Output.TABLE,
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Examine this host and the way to the coordinator: what is wrong, and the fix."""
    import json

    from allhands.doctor.coordinator_reading import NoCoordinator, choose_coordinator
    from allhands.doctor.examination import examine
    from allhands.doctor.finding import describe_findings, has_failed, make_document

    try:
        endpoint = choose_coordinator(coordinator, os.environ, insecure=insecure)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if not isinstance(endpoint, NoCoordinator):
        job = job or endpoint.address.job
    findings = list(examine(os.environ, endpoint, job, count or 0))
    match output:
        case Output.JSON:
            typer.echo(json.dumps(make_document(findings), indent=2))
        case Output.TABLE:
            show(describe_findings(findings))
    if has_failed(findings):
        raise typer.Exit(1)
