"""Observations of the coordinator for all pages that are open, each made once for all of them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from allhands_server.coordinator import Coordinator
from allhands_server.http.page.job_parts import JobParts
from allhands_server.http.page.parts import Json
from allhands_server.machine.measurements import JobMeasurement

PACE_SECONDS = 0.5
"""Between two observations of a job."""
_LARGEST_SHARE = 0.05
"""Of the loop's time that observations may take: those of a large world are further apart."""


class JobFeed:
    """The parts of one job, observed as often as pages ask, up to a pace."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.readers = 0
        self.kept = JobParts()
        self._due = 0.0

    def refresh(self, coordinator: Coordinator) -> None:
        """Observe the job, unless that was done a moment ago."""
        begun = time.monotonic()
        if begun < self._due:
            return
        seen = coordinator.observe(self.job, self.kept.last_event)
        if seen is None:
            self.kept.clear()
        else:
            self.kept.update(seen, time.time(), coordinator.clock_offset)
        self._due = _find_due(begun)


class PageFeed:
    """The jobs that pages show, and the list of all jobs."""

    def __init__(self) -> None:
        self._feeds: dict[str, JobFeed] = {}
        self._jobs: tuple[JobMeasurement, ...] = ()
        self._due = 0.0

    @contextmanager
    def open(self, job: str) -> Iterator[JobFeed]:
        """Return the feed of a job, shared with other readers, and kept while there are any."""
        feed = self._feeds.setdefault(job, JobFeed(job))
        feed.readers += 1
        try:
            yield feed
        finally:
            feed.readers -= 1
            if not feed.readers:
                del self._feeds[job]

    def list_jobs(self, coordinator: Coordinator) -> tuple[JobMeasurement, ...]:
        """Return the jobs, the latest of many, as of this moment or a moment ago."""
        begun = time.monotonic()
        if begun >= self._due:
            self._jobs = coordinator.measure().jobs
            self._due = _find_due(begun)
        return self._jobs


def describe_job(job: JobMeasurement) -> Json:
    """Return the row of a job in the list: name, state, members, size, silent members."""
    return [job.job, job.state, job.members, job.world_size, job.silent_members]


def _find_due(begun: float) -> float:
    """Return when the next observation may be made, after one that began then and has ended."""
    now = time.monotonic()
    # A hair less, so that a page that comes at the pace does not come just before.
    return begun + max(PACE_SECONDS * 0.9, (now - begun) / _LARGEST_SHARE)
