"""`allhands diagnose`: the call and the delay of every rank of a job.

docs/output.md has the fields of its document, `Diagnosis`.

Exit status: 0, and 1 where the job has ended and failed, or there is none of that name.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

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
    from allhands.coordinator.diagnosis import Diagnosis


@takes_client
def diagnose_command(
    job: AnyJobArgument = None,
    output: Annotated[
        Output, make_output_option(Output.TABLE, Output.WIDE, Output.JSON, Output.YAML)
    ] = Output.TABLE,
    watch: WatchOption = False,
    color: ColorOption = Color.AUTO,
    *,
    client: ClientOptions,
) -> None:
    """Show the position of every rank of a job: blocked calls, awaited ranks, late ranks.

    JOB may be left out where there is one. Of a job that has ended: the first failure, and the
    position of each rank then. Exit status 1: the job has ended and failed.
    """
    with client.open(job) as control, explain_not_found(control):
        chosen = choose_job(control)
        if watch:
            show_again(lambda: _make_view(control.diagnose(chosen)), output, color)
            return
        found = control.diagnose(chosen)
    _make_view(found).show(output, color)
    if found.has_failed:
        raise typer.Exit(1)


def _make_view(found: "Diagnosis") -> View:
    now = time.time()  # before the imports, which take milliseconds
    from allhands.cli.documents import make_diagnosis_fields
    from allhands.coordinator.diagnosis import describe_diagnosis

    return View(
        "Diagnosis",
        lambda: make_diagnosis_fields(found, now),
        lambda: describe_diagnosis(found),
    )


@contextmanager
def explain_not_found(control: "Control") -> Iterator[None]:
    """Return the error for a missing job, with the coordinator's address."""
    from allhands.errors import NotFound

    try:
        yield
    except NotFound as error:
        raise NotFound(
            f"{error} (the coordinator at {control.endpoint.address.target} was asked; the one of "
            "`allhands run` ends with its job: ALLHANDS_DUMP_ON_FAILURE=DIR keeps records of calls)"
        ) from error


def choose_job(control: "Control") -> str:
    """Return the named job, or the only job with members, else the only ended job.

    Raises:
        NotFound: no job was named, and there are none or several.
    """
    from allhands.errors import NotFound

    if control.job_name is not None:
        return control.job_name
    known = [one for one in control.jobs() if one.state != "empty"]
    live = [one.job for one in known if one.state != "ended"]
    ended = [one.job for one in known if one.state == "ended"]
    if len(found := live or ended) == 1:
        return found[0]
    which = "of a job" if live else "of a job that has ended"
    raise NotFound(f"give the name {which}: there are {', '.join(found) or 'none'}")
