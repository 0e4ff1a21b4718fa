"""Event log of a job: arrivals, departures, losses, epochs, aborts, refusals, in bounded memory.

Kept with the job, also after its end, and not in the coordinator's log: it starts anew with the
daemon. Two parts have room of their own, so that thousands of arrivals push out no loss.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable

from allhands_server.machine.effects import Answer, Effect, OperatorLog
from allhands_server.machine.requests import ListEvents
from allhands_server.machine.values import EventKind, JobEvent

MOST_OF_PART = 256
"""Events kept of routine, and as many of the rest."""
LARGEST_PART = 32 << 10
"""Bytes of each of the two parts."""
LARGEST_TOTAL = 64 << 20
"""Bytes of the events of all jobs; above that a part keeps the last FEWEST where one is added."""
FEWEST = 4
LONGEST_TEXT = 1_000
_OVERHEAD = 200
"""Bytes of an event beside its texts."""
_ROUTINE = {"joined", "left", "resumed", "silent", "heard"}


class EventCounts:
    """Numbers of events of all jobs since the daemon began, and the size of those kept."""

    def __init__(self) -> None:
        self.nbytes = 0
        """Of the events that are kept."""
        self.kinds: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        """Lost members, by the state that explains the loss."""
        self.verdicts: Counter[str] = Counter()
        """Absent ranks of the verdicts on calls, by state."""


class _Part:
    """Events of one part, the oldest first; their bytes count for all jobs as well."""

    def __init__(self, counts: EventCounts) -> None:
        self.events: deque[JobEvent] = deque()
        self._counts = counts
        self._nbytes = 0

    def add(self, event: JobEvent) -> None:
        self.events.append(event)
        self._count(_measure(event))
        while self._is_full:
            self._count(-_measure(self.events.popleft()))

    @property
    def _is_full(self) -> bool:
        if len(self.events) > MOST_OF_PART or self._nbytes > LARGEST_PART:
            return True
        return self._counts.nbytes > LARGEST_TOTAL and len(self.events) > FEWEST

    def clear(self) -> None:
        self.events.clear()
        self._count(-self._nbytes)

    def _count(self, nbytes: int) -> None:
        self._nbytes += nbytes
        self._counts.nbytes += nbytes


class JobEvents:
    """The event log of one job, and those who wait for its next event."""

    def __init__(
        self,
        job: str,
        counts: EventCounts | None = None,
        on_added: Callable[["JobEvents"], None] = lambda events: None,
    ) -> None:
        """`on_added` is called with this log where an event has come and somebody waits."""
        self._job = job
        self._counts = counts or EventCounts()
        self._on_added = on_added
        self._count = 0
        self._routine, self._rest = _Part(self._counts), _Part(self._counts)
        self._waiting: dict[int, ListEvents] = {}

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    def add(
        self,
        kind: EventKind,
        text: str,
        now: float,
        *,
        rank: int | None = None,
        state: str = "",
        epoch: int = 0,
        by: str = "",
    ) -> None:
        """Add an event; of texts the beginning is kept."""
        self._count += 1
        self._counts.kinds[kind] += 1
        part = self._routine if kind in _ROUTINE and not state else self._rest
        text, by = text[:LONGEST_TEXT], by[:LONGEST_TEXT]
        part.add(JobEvent(self._count, now, kind, text, rank, state, epoch, by))
        if self._waiting:
            self._on_added(self)

    def has_kept(self, kind: EventKind, text: str) -> bool:
        """Return whether an event that is no routine is kept with this text."""
        text = text[:LONGEST_TEXT]
        return any(one.kind == kind and one.text == text for one in self._rest.events)

    def log(
        self,
        kind: EventKind,
        text: str,
        now: float,
        *,
        rank: int | None = None,
        epoch: int = 0,
        state: str = "",
        is_failure: bool = False,
    ) -> OperatorLog:
        """Add an event, and return a line for the operator's log that says the same."""
        self.add(kind, text, now, rank=rank, epoch=epoch, state=state)
        return OperatorLog(f"job {self._job}: {text}", is_failure, self._job)

    def count_loss(self, state: str) -> None:
        """Count a lost member by the state that explains the loss."""
        self._counts.lost[state] += 1

    def count_absent(self, states: list[str]) -> None:
        """Count the absent ranks of a verdict on a call."""
        self._counts.verdicts.update(states)

    def close(self) -> None:
        """Forget all events, of a job that is forgotten."""
        self._routine.clear()
        self._rest.clear()

    # ------------------------------------------------------------ requests

    def submit(self, ticket: int, request: ListEvents) -> list[Effect]:
        """Answer with the events after a number, or wait for one."""
        found = self.list_after(request.after)
        if not found and request.waits:
            self._waiting[ticket] = request
            return []
        return [Answer(ticket, found)]

    def answer_waiting(self) -> list[Effect]:
        """Answer those who wait for the events that have come."""
        answers: list[Effect] = [
            Answer(ticket, found)
            for ticket, request in self._waiting.items()
            if (found := self.list_after(request.after))
        ]
        for one in answers:
            assert isinstance(one, Answer)
            del self._waiting[one.ticket]
        return answers

    def expire(self, ticket: int, now: float) -> Effect:
        """Answer a waiting request past its due time: nothing has come."""
        del self._waiting[ticket]
        return Answer(ticket, ())

    def cancel(self, ticket: int) -> None:
        """Drop a waiting request. Idempotent."""
        self._waiting.pop(ticket, None)

    def list_after(self, number: int) -> tuple[JobEvent, ...]:
        """Return the events that are kept behind a number, in order."""
        merged = heapq.merge(
            self._routine.events, self._rest.events, key=lambda event: event.number
        )
        return tuple(event for event in merged if event.number > number)


def _measure(event: JobEvent) -> int:
    return _OVERHEAD + len(event.text) + len(event.by)
