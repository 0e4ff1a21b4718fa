"""A watch and a lease beside the clients, each with the check of its promise."""

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait

from allhands.coordinator.client import Control
from allhands.coordinator.endpoint import Endpoint
from allhands.coordinator.kv.records import KeyEvent
from allhands.coordinator.watch import Watch
from allhands.errors import Compacted, CoordinatorUnavailable, LeaseNotFound, Refused, StoreTimeout
from support.linearizability.clients import JOB, Progress
from support.linearizability.history import Operation

LAST_KEY = "watched to here"
LEASED_KEY = "leased"
LEASE_SECONDS = 4.0
_PATIENCE = 60.0
_LAST_EVENT_SECONDS = 30.0


class Watcher:
    """A watch of all keys of the job, from their first change to `LAST_KEY`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._control = Control(endpoint, job=JOB, timeout=_PATIENCE)
        self.events: list[KeyEvent] = []
        self.gaps: list[tuple[int, int]] = []
        """Revisions, from and to, which were compacted before the watch came to them."""

        self._refusal = ""
        self._watch: Watch | None = None
        self._is_closed = False

    def run(self) -> None:
        """Collect events up to the last key, or until closed."""
        revision = 1
        while not self._is_closed and not self._has_last_key:
            self._watch = watch = self._control.watch("", prefix=True, revision=revision)
            try:
                self._collect(watch)
            except Compacted as error:
                revision = error.oldest
                self.gaps.append((watch.next_revision, revision - 1))
            except Refused as error:
                self._refusal = str(error)
                return

    def close(self) -> None:
        """End the watch. Idempotent."""
        self._is_closed = True
        if self._watch is not None:
            self._watch.close()
        self._control.close()

    @property
    def _has_last_key(self) -> bool:
        return bool(self.events) and self.events[-1].key == LAST_KEY

    def _collect(self, watch: Watch) -> None:
        for event in watch:
            self.events.append(event)
            if event.key == LAST_KEY:
                return

    def find_faults(self, parts: dict[str, list[Operation]]) -> Iterator[str]:
        """Describe the events that are missed, doubled or out of order."""
        if not self._has_last_key:
            yield f"the watch did not come to the last key: {self._refusal or 'no event came'}"
        places = [(event.revision, event.key) for event in self.events]
        if [revision for revision, _ in places] != sorted(revision for revision, _ in places):
            yield "events are not in the order of their revisions"
        if len(set(places)) != len(places):
            yield "an event was seen twice"
        yield from self._find_jumps()
        seen = dict(zip(places, self.events, strict=True))
        for key, revision, value in _list_acknowledged_puts(parts):
            event = seen.get((revision, key))
            if event is None and not self._is_in_gap(revision):
                yield f"the put of {key!r} at revision {revision} was not seen"
            elif event is not None and (event.is_deletion or event.value != value):
                yield f"another change of {key!r} than the put at revision {revision} was seen"

    def _find_jumps(self) -> Iterator[str]:
        """Describe where the versions of a key show that an event between was missed."""
        last: dict[str, tuple[int, int]] = {}
        for event in self.events:
            version, revision = last.get(event.key, (0, 0))
            following = 0 if event.is_deletion else event.record.version
            is_next = version > 0 if event.is_deletion else following == version + 1
            if not is_next and not self._is_gap_between(revision, event.revision):
                yield f"version {following} of {event.key!r} was seen after version {version}"
            last[event.key] = (following, event.revision)

    def _is_in_gap(self, revision: int) -> bool:
        return any(first <= revision <= last for first, last in self.gaps)

    def _is_gap_between(self, earlier: int, later: int) -> bool:
        return any(earlier < last and first < later for first, last in self.gaps)


def _list_acknowledged_puts(
    parts: dict[str, list[Operation]],
) -> Iterator[tuple[str, int, bytes]]:
    """Iterate over keys, revisions and values of the puts whose answers told a revision."""
    for part, operations in parts.items():
        for one in operations:
            match one.verb, one.arguments, one.result:
                case "put", (key, value), int(revision):
                    yield part + key, revision, value
                case "multi_put", pairs, int(revision):
                    yield from ((part + key, revision, value) for key, value in pairs)
                case "compare_and_set", (key, _, value), int(revision):
                    yield part + key, revision, value
                case "exchange", (_, value), (True, int(revision), _):
                    yield from ((part + key, revision, value) for key in "ab")


class LeaseHolder:
    """Holder of a lease, who looks whether its key is there for as long as it must be."""

    def __init__(self, endpoint: Endpoint, seen: Progress) -> None:
        self._control = Control(endpoint, job=JOB, timeout=_PATIENCE)
        self._progress = seen
        self.faults: list[str] = []
        self.keep_alives = self.ends = 0

    def run(self) -> None:
        """Keep a lease alive, and grant another one where it has ended, until the clients end."""
        with self._control:
            while not self._progress.is_over:
                with contextlib.suppress(CoordinatorUnavailable, Refused, StoreTimeout):
                    self._hold()
                    self.ends += 1

    def _hold(self) -> None:
        """Keep one lease alive until its key is gone."""
        granted = time.monotonic()
        lease = self._control.grant_lease(LEASE_SECONDS)
        with contextlib.suppress(LeaseNotFound):
            self._control.put(LEASED_KEY, b"", lease=lease)
        alive_until = granted + LEASE_SECONDS
        while not self._progress.is_over:
            with contextlib.suppress(CoordinatorUnavailable, StoreTimeout):
                record = self._control.get_record(LEASED_KEY)
                if record is None or record.lease != lease:
                    self._check_time(alive_until)
                    return
                begun = time.monotonic()
                try:
                    self._control.keep_alive(lease)
                except LeaseNotFound:
                    self._check_time(alive_until)
                else:
                    alive_until = begun + LEASE_SECONDS
                    self.keep_alives += 1

    def _check_time(self, alive_until: float) -> None:
        if (early := alive_until - time.monotonic()) > 0:
            self.faults.append(f"the lease ended {early:.3f} s before its time")


@contextlib.contextmanager
def watching(endpoint: Endpoint, seen: Progress) -> Iterator[tuple[Watcher, LeaseHolder]]:
    """Run a watch and a lease beside a block; both are over behind it."""
    watcher, holder = Watcher(endpoint), LeaseHolder(endpoint, seen)
    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(watcher.run), threads.submit(holder.run)]
        try:
            yield watcher, holder
        finally:
            seen.end()
            with Control(endpoint, job=JOB, timeout=_PATIENCE) as control:
                control.put(LAST_KEY, b"")
            wait(running, _LAST_EVENT_SECONDS)
            watcher.close()
            for one in running:
                one.result()
