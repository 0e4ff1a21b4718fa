"""The error of commands for a job that the coordinator does not know."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allhands.coordinator.client import Control


def check_job_exists(control: "Control") -> None:
    """Check that the job of a client is one of its coordinator's; None is no job, and passes.

    Raises:
        NotFound: it is not; the text lists those there are.
    """
    from allhands.errors import NotFound

    known = [one.job for one in control.jobs()]
    if control.job_name is not None and control.job_name not in known:
        existing = ", ".join(known) or "none"
        raise NotFound(f"no job {control.job_name!r} at this coordinator; there are: {existing}")
