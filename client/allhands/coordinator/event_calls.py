"""Calls about the events of a job: read, and followed."""

from collections.abc import Iterator

from allhands.coordinator.request_calls import RequestCalls
from allhands.deadlines import Timeout
from allhands.escapes import escape_line
from allhands.tracebacks import trims_tracebacks
from allhands_proto.quick_dataclass import dataclass
from allhands_proto.v1 import coordinator_pb2 as wire

_FOLLOW_SECONDS = 20.0
"""For which a call waits for the next event."""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event of a job, as the coordinator has noted it."""

    number: int
    """From 1 on; those missing between two are forgotten."""
    time: float
    """Seconds since 1970, by the coordinator's clock."""
    kind: str
    """`joined`, `left`, `lost`, `resumed`, `formed`, `regrouped`, `silent`, `heard`, `links`,
    `verdict`, `aborted`, `cancelled`, `refused`, `deleted`, `ended`, `restored`."""
    text: str
    """One sentence for people."""
    rank: int | None
    state: str
    """State of a lost, silent or absent rank, as in verdicts; `error`: it left because of one."""
    epoch: int
    """After the event; 0: unchanged."""
    by: str
    """Who aborted, cancelled or deleted."""


@trims_tracebacks
class EventCalls(RequestCalls):
    """Calls of a client about events."""

    def _require_job(self) -> str:
        raise NotImplementedError

    def events(
        self, name: str | None = None, *, after: int = 0, timeout: Timeout | None = None
    ) -> tuple[JobEvent, ...]:
        """Return the events of a job behind number `after`, as far as they are kept, in order.

        Raises:
            NotFound: the coordinator knows no such job.
        """
        return self._list_events(name or self._require_job(), after, False, timeout)

    def follow_events(self, name: str | None = None, *, after: int = 0) -> Iterator[JobEvent]:
        """Yield the events of a job behind number `after`, and those to come, without end.

        Raises:
            NotFound: the coordinator knows no such job, or none any more.
        """
        job = name or self._require_job()
        while True:
            for event in self._list_events(job, after, True, _FOLLOW_SECONDS):
                yield event
                after = event.number

    def _list_events(
        self, job: str, after: int, waits: bool, timeout: Timeout | None
    ) -> tuple[JobEvent, ...]:
        request = wire.ListEventsRequest(job=job, after=after, waits=waits)
        reply = self._call(
            self._calls.ListEvents, request, f"list the events of job {job!r}", timeout
        )
        return tuple(map(read_event, reply.events))


def read_event(message: wire.JobEvent) -> JobEvent:
    """Read an event; texts are escaped for terminals."""
    return JobEvent(
        message.number,
        message.time,
        escape_line(message.kind),
        escape_line(message.text),
        message.rank if message.HasField("rank") else None,
        escape_line(message.state),
        message.epoch,
        escape_line(message.by),
    )
