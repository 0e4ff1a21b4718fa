"""Requests that wait in some part of a job, by ticket."""

from dataclasses import dataclass
from typing import Protocol

from allhands_server.machine.effects import Effect
from allhands_server.machine.jobs import Job
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


class WaitingRequests:
    """The waiting requests of all jobs, each with the timer that ends its wait."""

    def __init__(self, timers: TimerQueue) -> None:
        self._timers = timers
        self._waiting: dict[int, _WaitingRequest] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, ticket: int, job: Job, place: Waiters, due: float | None) -> None:
        """Note a request that waits in `place`, until `due` at most."""
        timer = None
        if due is not None:
            timer = self._timers.schedule(due, lambda now: [place.expire(ticket, now)])
        self._waiting[ticket] = _WaitingRequest(job, place, timer)

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
        return waiting.job
