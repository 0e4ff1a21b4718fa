"""`allhands doctor`: what is wrong with this host and the way to the coordinator, and the fix.

Exit status: 0 nothing failed (warnings are no failures), 1 something did, 2 wrong usage.
docs/output.md has the fields of its document, `Examination`.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allhands.cli.options import AnyJobArgument, ClientOptions, ColorOption, takes_client
from allhands.cli.progress import show_progress
from allhands.cli.render import Color, Output, make_output_option, print_document, show

if TYPE_CHECKING:
    from allhands.coordinator.endpoint import Endpoint
    from allhands.coordinator.sections import Section
    from allhands.doctor.coordinator_reading import NoCoordinator
    from allhands.doctor.finding import Finding
    from allhands.doctor.pairs import PairResult


@takes_client
def doctor_command(
    job: AnyJobArgument = None,
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
        Output, make_output_option(Output.TABLE, Output.JSON, Output.YAML)
    ] = Output.TABLE,
    network: Annotated[
        bool,
        typer.Option(
            "--network",
            help="As the program of the ranks of a world, over several hosts: measure all pairs of "
            "hosts. Rank 0 shows them.",
        ),
    ] = False,
    color: ColorOption = Color.AUTO,
    *,
    client: ClientOptions,
) -> None:
    """Examine this host and the way to the coordinator: what is wrong, and the fix.

    With JOB it also connects to each rank of that job.
    """
    if not network:
        _examine_host(job, count or 0, output, color, client)
    elif job or count or client != ClientOptions():
        raise typer.BadParameter(
            "the world comes from the environment, as `allhands run` and torchrun set it; give "
            "neither JOB, -n nor a coordinator",
            param_hint="--network",
        )
    else:
        _examine_network(output, color)


def _examine_host(
    job: str | None, count: int, output: Output, color: Color, client: ClientOptions
) -> None:
    from allhands.doctor.coordinator_reading import NoCoordinator
    from allhands.doctor.examination import examine

    endpoint = _choose_coordinator(client)
    if not isinstance(endpoint, NoCoordinator):
        job = job or endpoint.address.job
    findings = []
    with show_progress(None, is_quiet_elsewhere=True) as say:
        say("examining the coordinator, then this host")
        for finding in examine(os.environ, endpoint, job, count):
            findings.append(finding)
            say(f"examined {finding.what}")
    _show_findings(findings, [], [], output, color)


def _choose_coordinator(client: ClientOptions) -> "Endpoint | NoCoordinator":
    """Return the endpoint of the named coordinator, else of the only one here, or why not."""
    from allhands.cli.endpoints import find_endpoint
    from allhands.doctor.coordinator_reading import NoCoordinator
    from allhands.errors import CoordinatorUnavailable

    named = client.coordinator or client.context
    try:
        return find_endpoint(client, os.environ)
    except CoordinatorUnavailable:
        return NoCoordinator("none is named, and none of yours runs on this host")
    except ValueError as error:
        variables = ("ALLHANDS_URL", "ALLHANDS_CONTEXT", "ALLHANDS_TLS_DIR")
        if named or any(map(os.environ.get, variables)):
            raise typer.BadParameter(str(error)) from error
        return NoCoordinator(str(error))


def _examine_network(output: Output, color: Color) -> None:
    """Measure all pairs of hosts with the other ranks; show them at rank 0."""
    from allhands.doctor.network_test import measure_network
    from allhands.doctor.pairs import check_pairs, describe_pairs

    try:
        with show_progress(None, is_quiet_elsewhere=True) as say:
            results = measure_network(os.environ, say)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--network") from error
    if results is not None:
        findings = list(check_pairs(results))
        _show_findings(findings, results, describe_pairs(results), output, color)


def _show_findings(
    findings: "Sequence[Finding]",
    pairs: "Sequence[PairResult]",
    sections: "Sequence[Section]",
    output: Output,
    color: Color,
) -> None:
    """Show findings below other sections; end with status 1 if something has failed."""
    from allhands.doctor.finding import describe_findings, has_failed

    if output.is_document:
        print_document("Examination", make_examination_fields(findings, pairs), output)
    else:
        show([*sections, *describe_findings(findings)], color, is_wide=True)  # nothing is cut
    if has_failed(findings):
        raise typer.Exit(1)


def make_examination_fields(
    findings: "Sequence[Finding]", pairs: "Sequence[PairResult]"
) -> dict[str, Any]:
    """Return an `Examination`."""
    return {
        "findings": [asdict(one) for one in findings],
        "pairs": [_make_pair(one) for one in pairs],
    }


def _make_pair(one: "PairResult") -> dict[str, Any]:
    tcp, link = one.tcp, one.link
    return {
        "source": asdict(one.source),
        "target": asdict(one.target),
        "port": tcp.port,
        "failure": tcp.failure,
        "problem": tcp.problem,
        "round_trip_seconds": tcp.round_trip,
        "bytes_per_second": tcp.bandwidth,
        "mtu_bytes": tcp.mtu,
        "link_problem": None if link is None else link.problem,
        "link_round_trip_seconds": None if link is None else link.round_trip,
        "link_bytes_per_second": None if link is None else link.bandwidth,
    }
