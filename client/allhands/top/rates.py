"""Rates of calls of groups, from the sequence numbers in successive statuses."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import field

from allhands.coordinator.stalls import count_calls
from allhands.coordinator.status import JobStatus
from allhands_proto.quick_dataclass import dataclass

WINDOW_SECONDS = 5.0
"""Rates are means over this time: progress arrives with heartbeats, about once a second."""
HISTORY = 60
"""Number of rates kept of each group."""

GroupName = tuple[str, str, str]
"""A job, its incarnation, and a group: a new incarnation counts its calls anew."""


@dataclass(slots=True)
class _Counter:
    samples: deque[tuple[float, int]] = field(default_factory=deque)
    """Times, and the number of the latest call then."""
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))

    def add(self, now: float, calls: int) -> None:
        if self.samples and calls < self.samples[-1][1]:  # counted anew after a recovery
            self.samples.clear()
        self.samples.append((now, calls))
        while len(self.samples) > 2 and now - self.samples[1][0] >= WINDOW_SECONDS:
            self.samples.popleft()
        (began, first), (ended, last) = self.samples[0], self.samples[-1]
        if ended > began:
            self.rates.append((last - first) / (ended - began))


class CallRates:
    """Calls a second of every group, now and before; groups that are gone are forgotten."""

    def __init__(self) -> None:
        self._counters: dict[GroupName, _Counter] = {}

    def add(self, now: float, jobs: Iterable[JobStatus]) -> None:
        """Take a status into account; `now` in seconds, of any clock that only moves forward."""
        known: dict[GroupName, _Counter] = {}
        for job in jobs:
            for group in job.groups:
                name = (job.job, job.incarnation, group.group)
                known[name] = self._counters.get(name) or _Counter()
                known[name].add(now, count_calls(job.members, group.group))
        self._counters = known

    def get_history(self, job: JobStatus, group: str) -> Sequence[float]:
        """Return rates of a group in calls a second, the newest last; empty: not known yet."""
        counter = self._counters.get((job.job, job.incarnation, group))
        return () if counter is None else tuple(counter.rates)

    def get_rate(self, job: JobStatus, group: str) -> float | None:
        """Return calls a second of a group now; None: not known yet."""
        history = self.get_history(job, group)
        return history[-1] if history else None
