"""Watches of the keys of a job: requests for the next events of a range."""

from collections.abc import Callable, Iterable

from allhands_proto.quick_dataclass import dataclass
from allhands_server.machine.changes import KeyDeleted, KeyPut
from allhands_server.machine.effects import Answer, Effect
from allhands_server.machine.fast_dataclass import fast_dataclass
from allhands_server.machine.limits import LARGEST_REPLY
from allhands_server.machine.memory_use import refuse_count
from allhands_server.machine.refusals import Refused, Status
from allhands_server.machine.requests import Request
from allhands_server.machine.store.history import KeyChange, KeyEvent
from allhands_server.machine.store.key_range import KeyRange, make_range
from allhands_server.machine.store.key_table import KeyTable
from allhands_server.machine.store.range_query import count_nbytes
from allhands_server.machine.timers import TimerQueue

EVENTS = 10_000
"""Events of an answer, at most."""
HOLD_SECONDS = 60.0
"""For which a watched job is kept at least after its last watch, with the history for the next."""


@fast_dataclass
class WatchEvent:
    change: KeyChange
    previous: KeyPut | None = None
    """Record before, if asked for."""


@fast_dataclass
class WatchResult:
    revision: int
    """Of the job's keys, now."""
    events: tuple[WatchEvent, ...] = ()
    next_revision: int = 0
    """Where to go on."""
    next_skip: int = 0
    """Number of events of that revision that are known."""
    oldest: int = 0
    """Not 0: events asked for are compacted, and this is the first revision that is not."""


@fast_dataclass
class Watch(Request[WatchResult]):
    """Ask for the next events of a range; see WatchRequest in coordinator.proto."""

    job: str
    key: str
    range_end: str = ""
    prefix: bool = False
    revision: int = 0
    skip: int = 0
    wait: bool = False
    previous: bool = False
    without_puts: bool = False
    without_deletions: bool = False


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: Watch
    keys: KeyRange


class Watches:
    """Waiting watches of one job; each is a request that ends with the next events.

    So nothing is kept here for a slow client, and a client that comes again asks from where it was.
    """

    def __init__(
        self,
        table: KeyTable,
        timers: TimerQueue,
        woken: "dict[Watches, None]",
        on_unused: Callable[[], None],
    ) -> None:
        """Make an empty part of a job; with new events it adds itself to `woken`.

        `on_unused` is called some time after the last watch.
        """
        self._table = table
        self._timers = timers
        self._woken = woken
        self._on_unused = on_unused
        self._new_from = 0
        """Revision of the first event since `answer_new`."""
        self._waiting: dict[int, _Waiting] = {}
        self._of_key: dict[str, dict[int, None]] = {}
        """Tickets that wait for one key."""
        self._of_range: dict[int, KeyRange] = {}
        """Ranges of the tickets that wait for more."""
        self._is_held = False
        self._was_used = False
        """Whether there was a watch since the timer was set."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_waited_for(self) -> bool:
        """Whether a watch waits, or may come again."""
        return self._is_held

    def hold(self, now: float) -> None:
        """Expect watches to come again: between two calls of a client the history is kept."""
        self._was_used = True
        if not self._is_held:
            self._is_held = True
            self._set_timer(now)

    def submit(self, ticket: int, request: Watch, now: float) -> list[Effect]:
        """Answer at once if there are events or the request does not wait, else keep it.

        Raises:
            Refused: the request makes no sense, or its revision is one that never was.
        """
        table = self._table
        keys = make_range(request.key, request.range_end, request.prefix)
        self.hold(now)
        first = request.revision or table.revision + 1
        if first > table.revision + 1:
            raise Refused(
                Status.FAILED_PRECONDITION,
                f"job {table.job} is at revision {table.revision:,}, and a watch would begin at "
                f"{first:,}: these are not the keys that it was about, as after a restart of a "
                "coordinator without a log",
            )
        if first <= table.history.floor:
            return [Answer(ticket, self._refuse_compacted())]
        result = self._collect(request, keys, first, request.skip)
        if result.events or not request.wait:
            return [Answer(ticket, result)]
        most = table.limits.job_watches
        if most and (count := len(self._waiting)) >= most:
            remedy = "watch a prefix in the place of many keys"
            raise refuse_count(table.job, count, "watches that wait", "job-watches", remedy)
        self._keep(ticket, _Waiting(request, keys))
        return []

    def cancel(self, ticket: int) -> None:
        """Drop a waiting request. Idempotent."""
        if (waiting := self._waiting.pop(ticket, None)) is None:
            return
        self._was_used = True
        if self._of_range.pop(ticket, None) is None:
            tickets = self._of_key[waiting.keys.first]
            del tickets[ticket]
            if not tickets:
                del self._of_key[waiting.keys.first]
        if not self._waiting:
            self._table.on_event = None

    def expire(self, ticket: int, now: float) -> Effect:
        """Answer a waiting request past its due time: there were no events."""
        request = self._waiting[ticket].request
        self.cancel(ticket)
        return Answer(ticket, self._end_result(request, ()))

    def answer_new(self) -> list[Effect]:
        """Answer the waiting requests for whose keys there are new events."""
        revision = self._new_from
        if revision <= self._table.history.floor:
            answer = self._refuse_compacted()
            return [self._answer(ticket, answer) for ticket in list(self._waiting)]
        effects: list[Effect] = []
        for ticket in self._find_concerned(revision):
            waiting = self._waiting[ticket]
            result = self._collect(waiting.request, waiting.keys, revision, 0)
            if result.events:
                effects.append(self._answer(ticket, result))
        return effects

    def _answer(self, ticket: int, result: WatchResult) -> Effect:
        self.cancel(ticket)
        return Answer(ticket, result)

    def _note_event(self, revision: int) -> None:
        if self not in self._woken:
            self._woken[self] = None
            self._new_from = revision

    # ------------------------------------------------------------ inside

    def _set_timer(self, now: float) -> None:
        self._was_used = False
        self._timers.schedule(now + HOLD_SECONDS, self._on_timer)

    def _on_timer(self, now: float) -> list[Effect]:
        if self._waiting or self._was_used:
            self._set_timer(now)
        else:
            self._is_held = False
            self._on_unused()
        return []

    def _keep(self, ticket: int, waiting: _Waiting) -> None:
        self._waiting[ticket] = waiting
        self._table.on_event = self._note_event
        if waiting.keys.is_one_key:
            self._of_key.setdefault(waiting.keys.first, {})[ticket] = None
        else:
            self._of_range[ticket] = waiting.keys

    def _find_concerned(self, revision: int) -> list[int]:
        """Return the tickets that wait for keys with events from a revision on."""
        changed = {change.key for change, _, _ in self._table.history.iterate_from(revision)}
        found = [ticket for key in changed & self._of_key.keys() for ticket in self._of_key[key]]
        for ticket, keys in self._of_range.items():
            if any(key in keys for key in changed):
                found.append(ticket)
        return sorted(found)

    def _refuse_compacted(self) -> WatchResult:
        return WatchResult(self._table.revision, oldest=self._table.history.oldest)

    def _collect(self, request: Watch, keys: KeyRange, first: int, skip: int) -> WatchResult:
        """Return the events from a revision on, as many as an answer has room for."""
        table = self._table
        events: list[WatchEvent] = []
        nbytes = 0
        place, of_revision = first, 0  # revision of the last event, and how many it has had
        for change, previous, _ in _select(table.history.iterate_from(first), request, keys):
            if change.revision != place:
                place, of_revision = change.revision, 0
            of_revision += 1
            if change.revision == first and of_revision <= skip:
                continue
            event = _make_event(change, previous if request.previous else None)
            nbytes += _count_event(event)
            if events and (nbytes > LARGEST_REPLY or len(events) >= EVENTS):
                return WatchResult(table.revision, tuple(events), place, of_revision - 1)
            events.append(event)
        return self._end_result(request, tuple(events))

    def _end_result(self, request: Watch, events: tuple[WatchEvent, ...]) -> WatchResult:
        """Return the events up to now."""
        # Behind the last event, and not behind the revision of now: that may be of changes which
        # the log has refused, and after a restart it would be one that never was.
        table = self._table
        place = max(table.history.next, request.revision)
        return WatchResult(table.revision, events, place)


def _select(events: Iterable[KeyEvent], request: Watch, keys: KeyRange) -> Iterable[KeyEvent]:
    for event in events:
        change = event[0]
        is_wanted = not (
            request.without_deletions if isinstance(change, KeyDeleted) else request.without_puts
        )
        if is_wanted and change.key in keys:
            yield event


def _make_event(change: KeyChange, previous: KeyPut | None) -> WatchEvent:
    event = WatchEvent(change, previous)
    # Of two very large values a reply has room for one.
    return event if _count_event(event) <= LARGEST_REPLY else WatchEvent(change)


def _count_event(event: WatchEvent) -> int:
    change, previous = event.change, event.previous
    nbytes = count_nbytes(change) if isinstance(change, KeyPut) else 64 + 4 * len(change.key)
    return nbytes if previous is None else nbytes + count_nbytes(previous)
