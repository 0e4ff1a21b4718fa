"""History of a job's keys: the latest changes, each with the record before."""

from bisect import bisect_left
from collections.abc import Iterator
from typing import TypeAlias

from allhands_server.machine.changes import KeyDeleted, KeyPut

HISTORY_NBYTES = 16 << 20
"""Bytes of the history of one job, counted as below."""
HISTORIES_NBYTES = 256 << 20
"""Bytes of the histories of all jobs."""
EVENT_NBYTES = 1024
"""Of an event beside its key and values: more than it takes, so that short events are bounded."""

_TRIMMED_PART = 8
"""Of a full history one part in so many is dropped at once."""

KeyChange: TypeAlias = KeyPut | KeyDeleted
KeyEvent: TypeAlias = tuple[KeyChange, KeyPut | None, int]
"""Change of a key, the key's record before (None: there was no such key), the bytes counted."""


class HistoryBudget:
    """The bytes of all histories: above the limit the largest are dropped."""

    def __init__(self, most: int | None = None) -> None:
        """`most`: bytes of a limit that may be below the usual one."""
        self.most = HISTORIES_NBYTES if most is None else min(HISTORIES_NBYTES, most)
        self.most_of_one = min(HISTORY_NBYTES, self.most)
        self.nbytes = 0
        self.histories: set[History] = set()

    def shrink(self, latest: "History") -> None:
        """Drop the largest histories but for the latest, until a part of the room is free."""
        others = sorted(self.histories - {latest}, key=lambda one: one.nbytes)
        while others and self.nbytes > self.most - self.most // _TRIMMED_PART:
            others.pop().drop_all()


class History:
    """Events of one job's keys, in order; the oldest are dropped above the limits."""

    def __init__(self, floor: int, budget: HistoryBudget) -> None:
        self._events: list[KeyEvent] = []
        self._budget = budget
        budget.histories.add(self)
        self.nbytes = 0
        self.floor = floor
        """The events up to this revision are not known."""

    @property
    def is_empty(self) -> bool:
        return not self._events

    @property
    def oldest(self) -> int:
        """The first revision from which on all events are known."""
        return self.floor + 1

    @property
    def next(self) -> int:
        """The least revision that a later event can have."""
        return (self._events[-1][0].revision if self._events else self.floor) + 1

    def append(self, change: KeyChange, previous: KeyPut | None) -> None:
        """Note a change with a revision that is not less than the last."""
        nbytes = EVENT_NBYTES + len(change.key)
        if isinstance(change, KeyPut):
            nbytes += len(change.value)
        if previous is not None:
            nbytes += len(previous.value)
        self._events.append((change, previous, nbytes))
        self.nbytes += nbytes
        self._budget.nbytes += nbytes
        if self.nbytes > self._budget.most_of_one:
            self._trim()
        if self._budget.nbytes > self._budget.most:
            self._budget.shrink(self)

    def take_back(self, revision: int) -> None:
        """Forget the events from a revision on. Idempotent."""
        while self._events and self._events[-1][0].revision >= revision:
            nbytes = self._events.pop()[2]
            self.nbytes -= nbytes
            self._budget.nbytes -= nbytes

    def compact(self, revision: int) -> None:
        """Forget the events up to a revision."""
        if revision > self.floor:
            self.floor = revision
            self._drop(self._find(revision + 1))

    def drop_all(self) -> None:
        """Forget all events."""
        if self._events:
            self.compact(self._events[-1][0].revision)

    def close(self) -> None:
        """Forget all events, for good. Idempotent."""
        self.drop_all()
        self._budget.histories.discard(self)

    def iterate_from(self, revision: int) -> Iterator[KeyEvent]:
        """Iterate over the events from a revision on, which is not compacted."""
        events = self._events
        return (events[place] for place in range(self._find(revision), len(events)))

    def iterate_back_to(self, revision: int) -> Iterator[KeyEvent]:
        """Iterate over the events behind a revision, the last one first."""
        events = self._events
        first = self._find(revision + 1)
        return (events[place] for place in range(len(events) - 1, first - 1, -1))

    def _find(self, revision: int) -> int:
        return bisect_left(self._events, revision, key=_get_revision)

    def _trim(self) -> None:
        """Drop the oldest events, but for those of the last revision."""
        last = self._find(self._events[-1][0].revision)
        most = self._budget.most_of_one
        most -= most // _TRIMMED_PART
        nbytes, dropped = self.nbytes, 0
        while dropped < last and nbytes > most:
            nbytes -= self._events[dropped][2]
            dropped += 1
        if dropped:
            self.compact(self._events[dropped - 1][0].revision)

    def _drop(self, count: int) -> None:
        nbytes = sum(nbytes for _, _, nbytes in self._events[:count])
        self.nbytes -= nbytes
        self._budget.nbytes -= nbytes
        del self._events[:count]


def _get_revision(event: KeyEvent) -> int:
    return event[0].revision
