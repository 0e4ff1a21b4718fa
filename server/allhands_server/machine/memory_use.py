"""Memory that the state of jobs takes, counted as it grows and shrinks.

Counts are estimates from above: the bytes of keys and values, and for each object around them more
than Python takes. Limits are checked before a change is made, and not where a log is read: what was
durable under larger limits is there under smaller ones.
"""

from allhands_server.machine.refusals import Refused, Status
from allhands_server.resource_limits import WITHOUT_LIMIT, ResourceLimits

RECORD_NBYTES = 512
"""Of a key beside key and value: the record, its places in dictionaries and in the index."""
QUEUED_NBYTES = 128
"""Of a value in a queue beside the value and its key."""
LEASE_NBYTES = 1024
WAITER_NBYTES = 1024
"""Of a waiting call beside its names."""
NAME_NBYTES = 384
"""Of each key or participant that a waiting call names, beside its text."""


class MemoryUse:
    """Bytes of all jobs, and the parts of the limit: half is for the state of jobs.

    A quarter is for histories, an eighth for calls under way, a sixteenth for kept answers.
    """

    def __init__(self, limits: ResourceLimits) -> None:
        most = limits.memory or WITHOUT_LIMIT
        self.limits = limits
        self.nbytes = 0
        """Of the state of all jobs."""
        self.most = most // 2
        self.job_most = limits.job_bytes or self.most // 2
        self.histories_most = most // 4
        self.completions_most = most // 16


class JobMemory:
    """Bytes of the state of one job, which count for all jobs as well."""

    __slots__ = ("_job", "_total", "limits", "nbytes")

    def __init__(self, job: str, total: MemoryUse) -> None:
        self._job = job
        self._total = total
        self.limits = total.limits
        self.nbytes = 0

    def add(self, nbytes: int) -> None:
        """Count bytes that were taken, or given back if they are negative."""
        self.nbytes += nbytes
        self._total.nbytes += nbytes

    def close(self) -> None:
        """Count nothing of this job any more."""
        self.add(-self.nbytes)

    def check(self, growth: int) -> None:
        """Refuse to grow by so many bytes, if that were above a limit; nothing is counted.

        Raises:
            Refused: says whose limit, who uses how much, and how it is raised.
        """
        if growth <= 0:
            return
        total = self._total
        if self.nbytes + growth > total.job_most:
            raise Refused(
                Status.RESOURCE_EXHAUSTED,
                f"job {self._job} has {self.nbytes:,} bytes of keys, queues and waiting calls, and "
                f"{growth:,} more would be above the {total.job_most:,} that a job may have: "
                "delete some, or raise it (`allhands serve --limit job-bytes=SIZE`)",
            )
        if total.nbytes + growth > total.most:
            raise Refused(
                Status.RESOURCE_EXHAUSTED,
                f"all jobs together have {total.nbytes:,} bytes of keys, queues and waiting calls, "
                f"{self.nbytes:,} of these in job {self._job}, and {growth:,} more would be above "
                f"the {total.most:,} there are room for: delete some (`allhands status --limits` "
                "shows whose), or raise it (`allhands serve --limit memory=SIZE`)",
            )


def refuse_count(job: str, count: int, what: str, limit: str, remedy: str) -> Refused:
    """Make the refusal of one more of something of which a job has the most it may have."""
    return Refused(
        Status.RESOURCE_EXHAUSTED,
        f"job {job} has {count:,} {what}, the most that a job has: {remedy}, or raise it "
        f"(`allhands serve --limit {limit}=NUMBER`)",
    )
