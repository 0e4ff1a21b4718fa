"""`allhands status`: the jobs of a coordinator, with their members and operations.

docs/output.md has the fields of its documents, `JobList` and `LimitList`.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from allhands.cli import missing_job
from allhands.cli.options import (
    AnyJobArgument,
    ClientOptions,
    ColorOption,
    WatchOption,
    takes_client,
)
from allhands.cli.render import Color, Output, make_output_option
from allhands.cli.watching import View, show_again

if TYPE_CHECKING:
    from allhands.coordinator.client import Control
    from allhands.coordinator.status import JobStatus


@takes_client
def status_command(
    job: AnyJobArgument = None,
    output: Annotated[Output, make_output_option(*Output)] = Output.TABLE,
    watch: WatchOption = False,
    limits: Annotated[
        bool,
        typer.Option(
            "--limits", help="Show the coordinator's limits, and how much is used of each."
        ),
    ] = False,
    color: ColorOption = Color.AUTO,
    *,
    client: ClientOptions,
) -> None:
    """Show jobs: members, their heartbeats, and the operation each is in; running jobs first."""
    with client.open(job) as control:
        look = _look_at_limits if limits else _look_at_jobs
        if watch:
            show_again(lambda: look(control), output, color)
        else:
            look(control).show(output, color)


def _look_at_jobs(control: "Control") -> View:
    from allhands.cli.documents import make_jobs_fields
    from allhands.coordinator.status import describe_jobs

    jobs = _select_jobs(control)
    now = time.time()
    return View(
        "JobList",
        lambda: make_jobs_fields(jobs, now),
        lambda: describe_jobs(jobs),
        lambda: [job.job for job in jobs],
    )


def _select_jobs(control: "Control") -> "Sequence[JobStatus]":
    """Return the client's job, or all jobs."""
    from allhands.coordinator.status import sort_jobs

    jobs = sort_jobs(control.jobs())
    if control.job_name is None:
        return jobs
    chosen = [one for one in jobs if one.job == control.job_name]
    if not chosen:
        raise missing_job.make_error(control.job_name, [one.job for one in jobs])
    return chosen


def _look_at_limits(control: "Control") -> View:
    from allhands.cli.documents import make_limits_fields
    from allhands.coordinator.limit_calls import describe_limits

    found = control.limits()
    return View(
        "LimitList",
        lambda: make_limits_fields(found),
        lambda: describe_limits(found),
        lambda: [one.name for one in found.limits],
    )
