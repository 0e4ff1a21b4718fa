"""`allhands group`: the ranks of one group, and how far each has come there."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from allhands.cli.options import CoordinatorOption, InsecureOption, open_client
from allhands.cli.render import show

if TYPE_CHECKING:
    from allhands.coordinator.status import JobStatus


def group_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `allhands status` names it.")],
    job: Annotated[str | None, typer.Option("--job", help="Look only in this job.")] = None,
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Show the members of a group with their progress."""
    with open_client(coordinator, job, insecure=insecure) as control:
        jobs = [one for one in control.jobs() if control.job_name in (None, one.job)]
        job = control.job_name
    _show(name, jobs, "any job" if job is None else f"job {job!r}")


def _show(name: str, jobs: "Sequence[JobStatus]", where: str) -> None:
    from allhands.coordinator.status import describe_group
    from allhands.errors import NotFound

    found = [(job, group) for job in jobs for group in job.groups if group.group == name]
    if not found:
        existing = ", ".join(f"{one.group} ({job.job})" for job in jobs for one in job.groups)
        raise NotFound(f"no group {name!r} in {where}; there are: {existing or 'none'}")
    for job, group in found:
        show(describe_group(job, group))
