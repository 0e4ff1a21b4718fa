"""Search for a job among the coordinators of this user on this host."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from allhands_proto.quick_dataclass import dataclass

if TYPE_CHECKING:
    from allhands.coordinator.endpoint import Endpoint

_SECONDS = 2.0
"""For the answer of each."""


@dataclass(frozen=True, slots=True)
class JobSearch:
    """Result of a search."""

    endpoint: "Endpoint | None" = None
    """Of the coordinator that has the job; None: none has it, or there is only one to ask."""
    asked: tuple[str, ...] = ()
    """Coordinators that do not have it, for people."""

    @contextmanager
    def explain_not_found(self) -> Iterator[None]:
        """Name the coordinators that were asked in the error of a job that none of them has."""
        from allhands.errors import NotFound

        try:
            yield
        except NotFound as error:
            if self.endpoint is not None or not self.asked:
                raise
            raise NotFound(
                f"{error}; of yours on this host were asked: {', '.join(self.asked)}"
            ) from error


def search_job(job: str) -> JobSearch:
    """Search the coordinators that have left notices for a job, daemons first.

    Raises:
        ValueError: several of `allhands run` have one of that name.
    """
    from allhands.coordinator.endpoint import make_notice_endpoint
    from allhands_proto import notice

    live = notice.list_live()
    if len(live) < 2:
        return JobSearch()
    having = []
    for one in live:
        if _has_job(make_notice_endpoint(one), job):
            if one.kind == "daemon":
                return JobSearch(make_notice_endpoint(one))
            having.append(one)
    if len(having) > 1:
        listed = ", ".join(f"{one.url} (pid {one.pid})" for one in having)
        raise ValueError(
            f"{len(having)} coordinators of yours on this host have a job {job!r}; choose one with "
            f"--coordinator or ALLHANDS_URL: {listed}"
        )
    if having:
        return JobSearch(make_notice_endpoint(having[0]))
    return JobSearch(asked=tuple(f"{one.url} ({one.kind}, pid {one.pid})" for one in live))


def _has_job(endpoint: "Endpoint", job: str) -> bool:
    from allhands import errors
    from allhands.coordinator.client import Control

    try:
        with Control(endpoint, job=job, timeout=_SECONDS) as control:
            control.job()
    except errors.AllhandsError:  # no such job, or it ends, or is stopped: there are others
        return False
    return True
