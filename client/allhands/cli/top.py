"""`allhands top`: a full-screen view of jobs, groups and ranks."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from allhands.cli.completion import complete_jobs
from allhands.cli.missing_job import check_job_exists
from allhands.cli.options import ClientOptions, takes_client

if TYPE_CHECKING:
    from allhands.coordinator.client import Control
    from allhands.coordinator.diagnosis import Diagnosis
    from allhands.coordinator.status import JobStatus

_TIMEOUT = 5.0
"""Seconds for an answer, before the view says that there is none."""


class _Coordinator:
    """The coordinator as the view asks it."""

    def __init__(self, control: "Control") -> None:
        self._control = control

    @property
    def name(self) -> str:
        return f"ah://{self._control.endpoint.address.target}"

    def read_jobs(self) -> "Sequence[JobStatus]":
        return self._control.jobs(timeout=_TIMEOUT)

    def diagnose(self, job: str) -> "Diagnosis":
        return self._control.diagnose(job, timeout=_TIMEOUT)


@takes_client
def top_command(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]",
            help="Begin with this one; else with all.",
            autocompletion=complete_jobs,
        ),
    ] = None,
    *,
    client: ClientOptions,
) -> None:
    """Watch jobs, groups and ranks on a full screen: rates, late ranks, stalls, stacks.

    Enter opens a job, then a rank; Escape goes back; o changes the order of ranks; q ends.
    """
    try:
        from allhands.top.app import Top
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "textual":
            raise
        raise typer.BadParameter(
            "allhands top needs textual: pip install 'allhands[top]'"
        ) from error
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        raise typer.BadParameter(
            "allhands top needs a terminal; for a file or a program: allhands status -o json"
        )
    with client.open(job) as control:
        check_job_exists(control)
        Top(_Coordinator(control), control.job_name).run()
