"""Idle jobs: ended, or without keys. A bounded number is kept, to be looked at afterwards."""

from collections.abc import Iterator

from allhands_proto.quick_dataclass import dataclass

IDLE_JOBS_KEPT = 1_000
"""Number of idle jobs kept."""
IDLE_MEMBERS_KEPT = 100_000
"""Number of members of all idle jobs; the oldest jobs are dropped first."""
IDLE_REPORTS_KEPT = 64 << 20
"""Bytes of reports of idle jobs; those of the oldest jobs are dropped first."""


@dataclass(slots=True)
class _IdleJob:
    """Size of an idle job."""

    members: int = 0
    nbytes: int = 0
    """Of reports."""


class IdleJobs:
    """Names of idle jobs in the order of their last use, with their sizes."""

    def __init__(self) -> None:
        self._idle: dict[str, _IdleJob] = {}
        self._members = self._nbytes = 0  # of these

    def __len__(self) -> int:
        return len(self._idle)

    def add(self, name: str, members: int, nbytes: int) -> None:
        """Add a job that is not idle yet, with its number of members and bytes of reports."""
        self._idle[name] = _IdleJob(members, nbytes)
        self._members += members
        self._nbytes += nbytes

    def discard(self, name: str) -> None:
        """Remove a job. Idempotent."""
        if (kept := self._idle.pop(name, None)) is not None:
            self._members -= kept.members
            self._nbytes -= kept.nbytes

    def find_oldest(self) -> str | None:
        """Return the job whose last use is longest ago; None: no job is idle."""
        return next(iter(self._idle), None)

    def take_surplus(self) -> Iterator[str]:
        """Remove the oldest jobs above the limits, and yield their names."""
        while len(self._idle) > IDLE_JOBS_KEPT or (
            self._members > IDLE_MEMBERS_KEPT and len(self._idle) > 1
        ):
            oldest = next(iter(self._idle))
            self.discard(oldest)
            yield oldest

    def take_reports(self) -> Iterator[str]:
        """Yield the oldest jobs whose reports are to be dropped."""
        for name, one in self._idle.items():
            if self._nbytes <= IDLE_REPORTS_KEPT:
                return
            if one.nbytes:
                self._nbytes -= one.nbytes
                one.nbytes = 0
                yield name
