"""What commands say of a job that the coordinator does not know."""

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allhands.coordinator.client import Control
    from allhands.errors import NotFound


def check_job_exists(control: "Control") -> None:
    """Check that the job of a client is one of its coordinator's; None is no job, and passes.

    Raises:
        NotFound: it is not; the text lists those there are.
    """
    known = [one.job for one in control.jobs()]
    if control.job_name is not None and control.job_name not in known:
        raise make_error(control.job_name, known)


def note_missing_job(control: "Control") -> None:
    """Write to stderr that the job of a client is none of its coordinator's, if so.

    For a listing without any key: a job is gone with the last of its keys, which is no failure.
    """
    from allhands.errors import NotFound

    try:
        check_job_exists(control)
    except NotFound as error:
        typer.echo(f"allhands: {error}", err=True)


def make_error(job: str, known: "Sequence[str]") -> "NotFound":
    """Make the error for a job that is not among those that the coordinator knows."""
    from allhands.errors import NotFound

    existing = ", ".join(known) or "none"
    return NotFound(f"no job {job!r} at this coordinator; there are: {existing}")
