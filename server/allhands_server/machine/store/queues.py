"""Queues of a job, with requests: every pushed value is popped once."""

from collections import deque
from collections.abc import Iterator
from typing import TypeAlias

from allhands_server.machine.changes import Change, ChangeRecorder, QueuePushed, QueueTaken, Undo
from allhands_server.machine.effects import Answer, Effect, Refuse
from allhands_server.machine.fast_dataclass import fast_dataclass
from allhands_server.machine.formatting import quote
from allhands_server.machine.limits import check_key, check_value
from allhands_server.machine.memory_use import QUEUED_NBYTES, JobMemory
from allhands_server.machine.refusals import Refusal, Refused, Status
from allhands_server.machine.requests import Request


@fast_dataclass
class QueuePush(Request[int]):
    """Answered with the queue's length; 0: a waiting pop took the value."""

    job: str
    key: str
    value: bytes


@fast_dataclass
class QueuePop(Request[bytes]):
    job: str
    key: str
    wait: bool = False


@fast_dataclass
class QueueLength(Request[int]):
    job: str
    key: str


QueueRequest: TypeAlias = QueuePush | QueuePop | QueueLength


class Queues:
    """First-in first-out queues; pops of an empty queue are served in order of arrival."""

    def __init__(self, job: str, recorder: ChangeRecorder, memory: JobMemory) -> None:
        self._job = job
        self._memory = memory
        self._nbytes = 0
        """Of all values."""
        self._recorder = recorder
        self._values: dict[str, deque[bytes]] = {}  # none of them empty
        self._waiters: dict[str, dict[int, None]] = {}  # tickets, in order of asking
        self._waiting: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._values)

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    def submit(self, ticket: int, request: QueueRequest) -> list[Effect]:
        """Answer at once, or keep a pop until a value is pushed.

        Raises:
            Refused: nothing has changed.
        """
        check_key(request.key)
        match request:
            case QueuePush(_, key, value):
                check_value(key, len(value), self._memory.limits.value_size)
                return self._handle_push(ticket, key, value)
            case QueuePop(_, key, wait):
                return self._handle_pop(ticket, key, wait)
            case QueueLength(_, key):
                return [Answer(ticket, len(self._values.get(key, ())))]

    def cancel(self, ticket: int) -> None:
        """Drop a waiting pop. Idempotent."""
        if (key := self._waiting.pop(ticket, None)) is not None:
            waiters = self._waiters[key]
            del waiters[ticket]
            if not waiters:
                del self._waiters[key]

    def expire(self, ticket: int, now: float) -> Effect:
        """Refuse a waiting pop past the due time."""
        text = f"nobody has pushed to queue {quote(self._waiting[ticket])} of {self._name}"
        self.cancel(ticket)
        return Refuse(ticket, Refusal(Status.DEADLINE_EXCEEDED, text))

    # ------------------------------------------------------------ durable state

    def apply(self, change: QueuePushed | QueueTaken) -> None:
        """Make a change; a waiting pop is not answered by it."""
        if isinstance(change, QueuePushed):
            self._values.setdefault(change.key, deque()).append(change.value)
            self._count(_measure(change.key, change.value))
        else:
            self._remove(change.key, 0)

    def make_undo(self, change: QueuePushed | QueueTaken) -> Undo:
        """Return the reverse of a change about to be applied."""
        if isinstance(change, QueuePushed):
            pushed = change.key
            return lambda: self._remove(pushed, -1)
        key, value = change.key, self._values[change.key][0]

        def undo() -> None:
            self._values.setdefault(key, deque()).appendleft(value)
            self._count(_measure(key, value))

        return undo

    def clear(self) -> None:
        """Drop all values; waiting pops stay."""
        self._values.clear()
        self._count(-self._nbytes)

    def list_changes(self) -> Iterator[Change]:
        """Return changes that make the queues of now; later changes do not matter."""
        job, queues = self._job, [(key, tuple(values)) for key, values in self._values.items()]
        return (QueuePushed(job, key, value) for key, values in queues for value in values)

    def answer_present(self) -> list[Effect]:
        """Answer waiting pops whose values are there, after changes were taken back."""
        effects: list[Effect] = []
        for ticket, key in list(self._waiting.items()):
            if key in self._values:
                self.cancel(ticket)
                effects.append(Answer(ticket, self._take(key)))
        return effects

    def _count(self, nbytes: int) -> None:
        self._nbytes += nbytes
        self._memory.add(nbytes)

    def _take(self, key: str) -> bytes:
        value = self._values[key][0]
        self._recorder.commit(QueueTaken(self._job, key), self)
        return value

    def _remove(self, key: str, place: int) -> None:
        values = self._values[key]
        self._count(-_measure(key, values[place]))
        del values[place]
        if not values:
            del self._values[key]

    # ------------------------------------------------------------ inside

    @property
    def _name(self) -> str:
        return f"job {self._job}"

    def _handle_push(self, ticket: int, key: str, value: bytes) -> list[Effect]:
        if (waiters := self._waiters.get(key)) is not None:
            first = next(iter(waiters))
            self.cancel(first)
            return [Answer(ticket, 0), Answer(first, value)]
        self._memory.check(_measure(key, value))
        self._recorder.commit(QueuePushed(self._job, key, value), self)
        return [Answer(ticket, len(self._values[key]))]

    def _handle_pop(self, ticket: int, key: str, wait: bool) -> list[Effect]:
        if key in self._values:
            return [Answer(ticket, self._take(key))]
        if not wait:
            raise Refused(Status.NOT_FOUND, f"queue {quote(key)} of {self._name} is empty")
        self._waiting[ticket] = key
        self._waiters.setdefault(key, {})[ticket] = None
        return []


def _measure(key: str, value: bytes) -> int:
    return QUEUED_NBYTES + len(key) + len(value)
