"""`allhands doctor`: what is wrong with this host and the way to the coordinator, and the fix.

Exit status: 0 nothing failed (warnings are no failures), 1 something did, 2 wrong usage. The JSON
form is stable: names are added, none is removed or given another meaning.

    {"version": 1,
     "findings": [{"status": "ok|warn|fail|skip", "what": str, "detail": str,
                   "fix": str (empty: nothing is to be done)}]}

With --network rank 0 writes it, with what each host has measured towards each other one:

    "pairs": [{"source": {"rank": int, "host": str, "address": str}, "target": the same,
               "tcp": {"port": int,
                       "failure": "refused|silent|unreachable|large|other" or null (it works),
                       "problem": str, "round_trip": seconds, "bandwidth": bytes a second,
                       "mtu": bytes (0: not known)},
               "link": {"problem": str, "round_trip": seconds, "bandwidth": bytes a second}
                       or null (not tried)}]
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
    network: Annotated[
        bool,
        typer.Option(
            "--network",
            help="As the program of the ranks of a world, over several hosts: measure all pairs of "
            "hosts. Rank 0 shows them.",
        ),
    ] = False,
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Examine this host and the way to the coordinator: what is wrong, and the fix."""
    if network:
        if job or coordinator or count:
            raise typer.BadParameter(
                "the world comes from the environment, as `allhands run` and torchrun set it; "
                "give neither JOB, --coordinator nor -n",
                param_hint="--network",
            )
        _examine_network(output)
        return
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


def _examine_network(output: Output) -> None:
    """Measure all pairs of hosts with the other ranks; show them at rank 0."""
    import json

    from allhands.doctor.finding import describe_findings, has_failed, make_document
    from allhands.doctor.network_test import measure_network
    from allhands.doctor.pairs import check_pairs, describe_pairs, make_pairs_document

    try:
        results = measure_network(os.environ)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--network") from error
    if results is None:
        return
    findings = list(check_pairs(results))
    match output:
        case Output.JSON:
            told = {**make_document(findings), "pairs": make_pairs_document(results)}
            typer.echo(json.dumps(told))
        case Output.TABLE:
            show([*describe_pairs(results), *describe_findings(findings)])
    if has_failed(findings):
        raise typer.Exit(1)
