"""History of a job's keys: the latest changes, each with the record before."""

from bisect import bisect_left
from collections.abc import Iterator
from typing import TypeAlias

from allhands_server.machine.changes import KeyDeleted, KeyPut

HISTORY_NBYTES = 16 << 20
"""Bytes of the history of one job, counted as below."""
EVENT_NBYTES = 1024
"""Of an event beside its key and values: more than it takes, so that short events are bounded."""

_TRIMMED_PART = 8
"""Of a full history one part in so many is dropped at once."""

KeyChange: TypeAlias = KeyPut | KeyDeleted
KeyEvent: TypeAlias = tuple[KeyChange, KeyPut | None, int]
"""Change of a key, the key's record before (None: there was no such key), the bytes counted."""


class History:
    """Events of one job's keys, in order; the oldest are dropped above the limits."""

    def __init__(self, floor: int) -> None:
        self._events: list[KeyEvent] = []
        self._nbytes = 0
        self.floor = floor
        """The events up to this revision are not known."""

    @property
    def is_empty(self) -> bool:
        return not self._events

    @property
    def oldest(self) -> int:
        """The first revision from which on all events are known."""
        return self.floor + 1

    def append(self, change: KeyChange, previous: KeyPut | None) -> None:
        """Note a change with a revision that is not less than the last."""
        nbytes = EVENT_NBYTES + len(change.key)
        if isinstance(change, KeyPut):
            nbytes += len(change.value)
        if previous is not None:
            nbytes += len(previous.value)
        self._events.append((change, previous, nbytes))
        self._nbytes += nbytes
        if self._nbytes > HISTORY_NBYTES:
            self._trim()

    def take_back(self, revision: int) -> None:
        """Forget the events from a revision on. Idempotent."""
        while self._events and self._events[-1][0].revision >= revision:
            self._nbytes -= self._events.pop()[2]

    def compact(self, revision: int) -> None:
        """Forget the events up to a revision."""
        if revision > self.floor:
            self.floor = revision
            self._drop(self._find(revision + 1))

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
        most = HISTORY_NBYTES - HISTORY_NBYTES // _TRIMMED_PART
        nbytes, dropped = self._nbytes, 0
        while dropped < last and nbytes > most:
            nbytes -= self._events[dropped][2]
            dropped += 1
        if dropped:
            self.compact(self._events[dropped - 1][0].revision)

    def _drop(self, count: int) -> None:
        self._nbytes -= sum(nbytes for _, _, nbytes in self._events[:count])
        del self._events[:count]


def _get_revision(event: KeyEvent) -> int:
    return event[0].revision
