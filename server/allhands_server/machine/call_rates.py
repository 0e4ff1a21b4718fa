"""Rates of calls, of each job and of each client: who is over a rate is slowed, then refused.

A bucket holds the calls of one second. A call that comes when it is empty waits for its turn, a
second at most; what would wait for longer is refused with the time when to ask again.
"""

from allhands_proto.quick_dataclass import dataclass
from allhands_server.machine.refusals import Refused, Status
from allhands_server.resource_limits import ResourceLimits

SLOWED_SECONDS = 1.0
"""For which a call waits before it is carried out, at most."""
_KEPT = 1_000
"""Buckets of jobs or clients above which the full ones are looked for and dropped."""


@dataclass(slots=True)
class _Bucket:
    left: float
    """Calls that may be carried out now; negative: of those that wait."""
    at: float
    """Time of that."""


class _Rate:
    """Buckets by name, which are filled at one rate."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._buckets: dict[str, _Bucket] = {}
        self._tidy_at = _KEPT

    def __len__(self) -> int:
        return len(self._buckets)

    def find_wait(self, name: str, now: float) -> float:
        """Return the seconds until one more call may be carried out."""
        bucket = self._fill(name, now)
        return max(0.0, (1.0 - bucket.left) / self.rate)

    def take(self, name: str, now: float) -> None:
        """Take one call out of a bucket, now or before it is there."""
        self._fill(name, now).left -= 1.0

    def _fill(self, name: str, now: float) -> _Bucket:
        if (bucket := self._buckets.get(name)) is None:
            if len(self._buckets) >= self._tidy_at:
                self._tidy(now)
            bucket = self._buckets[name] = _Bucket(float(self.rate), now)
        bucket.left = min(float(self.rate), bucket.left + (now - bucket.at) * self.rate)
        bucket.at = now
        return bucket

    def _tidy(self, now: float) -> None:
        """Drop the buckets that are full, as a new one is."""
        self._buckets = {
            name: one
            for name, one in self._buckets.items()
            if one.left + (now - one.at) * self.rate < self.rate
        }
        self._tidy_at = max(_KEPT, 2 * len(self._buckets))


class CallRates:
    """The rates of all jobs and clients; times are given."""

    def __init__(self, limits: ResourceLimits) -> None:
        self._jobs = _Rate(limits.job_rate) if limits.job_rate else None
        self._clients = _Rate(limits.client_rate) if limits.client_rate else None
        self.is_limited = self._jobs is not None or self._clients is not None
        """Whether there is any limit."""

    def admit(self, job: str, client: str, patience: float, now: float) -> float:
        """Return the seconds after which a call is to be carried out, 0 for at once.

        Args:
            client: address of the connection.
            patience: seconds that the call may wait.

        Raises:
            Refused: it would wait for longer, or than a call is slowed at most; says when to ask
                again. It takes nothing of the rates.
        """
        most = min(patience, SLOWED_SECONDS)
        of_job = 0.0 if self._jobs is None else self._jobs.find_wait(job, now)
        of_client = 0.0 if self._clients is None else self._clients.find_wait(client, now)
        if self._jobs is not None and of_job > most:
            raise _refuse(f"job {job} makes", self._jobs.rate, "job-rate", of_job)
        if self._clients is not None and of_client > most:
            raise _refuse(f"{client} makes", self._clients.rate, "client-rate", of_client)
        if self._jobs is not None:
            self._jobs.take(job, now)
        if self._clients is not None:
            self._clients.take(client, now)
        return max(of_job, of_client)


def _refuse(who: str, rate: int, limit: str, wait: float) -> Refused:
    return Refused(
        Status.RESOURCE_EXHAUSTED,
        f"{who} more than {rate:,} calls a second, the most there may be: ask again in "
        f"{wait:.1f} s, or raise it (`allhands serve --limit {limit}=NUMBER`)",
        retry_after=wait,
    )
