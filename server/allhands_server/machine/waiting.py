"""Requests that wait in some part of a job, by ticket."""

from typing import Any, Protocol

from allhands_proto.quick_dataclass import dataclass
from allhands_server.machine.effects import Effect
from allhands_server.machine.jobs import Job
from allhands_server.machine.memory_use import NAME_NBYTES, WAITER_NBYTES, refuse_count
from allhands_server.machine.refusals import Refused
from allhands_server.machine.requests import Request
from allhands_server.machine.timers import Timer, TimerQueue


class Waiters(Protocol):
    """Requests waiting in one part of a job, by ticket."""

    def expire(self, ticket: int, now: float) -> Effect:
        """Refuse a waiting request past its due time, naming the missing."""

    def cancel(self, ticket: int) -> None:
        """Drop a waiting request as if never made. Idempotent."""


@dataclass(frozen=True, slots=True)
class _WaitingRequest:
    job: Job
    waiters: Waiters
    timer: Timer | None
    nbytes: int


class WaitingRequests:
    """The waiting requests of all jobs, each with the timer that ends its wait."""

    def __init__(self, timers: TimerQueue) -> None:
        self._timers = timers
        self._waiting: dict[int, _WaitingRequest] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add_limited(
        self, ticket: int, job: Job, place: Waiters, due: float | None, request: Request[Any]
    ) -> None:
        """Note a request that waits, as `add`, of a client; within the limits of the job.

        Raises:
            Refused: the job has no room for one more; this one is dropped.
        """
        nbytes = _measure(request)
        try:
            most = job.memory.limits.job_waiters
            if most and job.waiters >= most:
                remedy = "let fewer calls wait at once"
                raise refuse_count(job.name, job.waiters, "waiting calls", "job-waiters", remedy)
            job.memory.check(nbytes)
        except Refused:
            place.cancel(ticket)
            raise
        self.add(ticket, job, place, due, nbytes)

    def add(
        self, ticket: int, job: Job, place: Waiters, due: float | None, nbytes: int = 0
    ) -> None:
        """Note a request that waits in `place`, until `due` at most, and takes so many bytes."""
        timer = None
        if due is not None:
            timer = self._timers.schedule(due, lambda now: [place.expire(ticket, now)])
        self._waiting[ticket] = _WaitingRequest(job, place, timer, nbytes)
        job.waiters += 1
        job.memory.add(nbytes)

    def cancel(self, ticket: int) -> Job | None:
        """Drop a request as if never made; return its job. Idempotent."""
        if (waiting := self._waiting.get(ticket)) is None:
            return None
        waiting.waiters.cancel(ticket)
        return self.forget(ticket)

    def forget(self, ticket: int) -> Job | None:
        """Forget a request that is answered; return its job, None if it did not wait."""
        if (waiting := self._waiting.pop(ticket, None)) is None:
            return None
        if waiting.timer is not None:
            waiting.timer.cancel()
        waiting.job.waiters -= 1
        waiting.job.memory.add(-waiting.nbytes)
        return waiting.job


def _measure(request: Request[Any]) -> int:
    """Return about how many bytes a waiting request takes."""
    nbytes = WAITER_NBYTES
    for field in ("keys", "participants", "first_participants"):
        names = getattr(request, field, ())
        nbytes += NAME_NBYTES * len(names) + sum(map(len, names))
    return nbytes
