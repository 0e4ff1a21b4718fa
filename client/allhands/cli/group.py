"""`allhands group`: the ranks of one group, and how far each has come there.

docs/output.md has the fields of its document, `GroupList`.
"""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from allhands.cli.completion import complete_jobs
from allhands.cli.options import (
    ClientOptions,
    ColorOption,
    OldJobOption,
    WatchOption,
    settle_job,
    takes_client,
)
from allhands.cli.render import Color, Output, make_output_option
from allhands.cli.watching import View, show_again

if TYPE_CHECKING:
    from allhands.coordinator.client import Control


@takes_client
def group_command(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[JOB] NAME",
            help="Which group, as `allhands status` names it; without JOB: of all jobs.",
            autocompletion=complete_jobs,
        ),
    ],
    output: Annotated[
        Output, make_output_option(Output.TABLE, Output.WIDE, Output.JSON, Output.YAML)
    ] = Output.TABLE,
    watch: WatchOption = False,
    color: ColorOption = Color.AUTO,
    old_job: OldJobOption = None,
    *,
    client: ClientOptions,
) -> None:
    """Show the members of a group with their progress."""
    if len(names) > 2:
        raise typer.BadParameter(f"give a job and a group, not {len(names)} names")
    job = names[0] if len(names) == 2 else None
    name = names[-1]
    with client.open(settle_job(job, old_job)) as control:
        if watch:
            show_again(lambda: _look(control, name), output, color)
        else:
            _look(control, name).show(output, color)


def _look(control: "Control", name: str) -> View:
    """Return the groups of a name in the client's job, or in all jobs.

    Raises:
        NotFound: there is none.
    """
    from allhands.cli.documents import make_groups_fields
    from allhands.coordinator.status import describe_group, sort_jobs
    from allhands.errors import NotFound

    jobs = [one for one in sort_jobs(control.jobs()) if control.job_name in (None, one.job)]
    now = time.time()
    found = [(job, group) for job in jobs for group in job.groups if group.group == name]
    if not found:
        where = "any job" if control.job_name is None else f"job {control.job_name!r}"
        existing = ", ".join(f"{one.group} ({job.job})" for job in jobs for one in job.groups)
        raise NotFound(f"no group {name!r} in {where}; there are: {existing or 'none'}")
    return View(
        "GroupList",
        lambda: make_groups_fields(found, now),
        lambda: [section for one in found for section in describe_group(*one)],
    )
