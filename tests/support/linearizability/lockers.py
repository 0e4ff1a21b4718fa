"""Clients that hold locks in turn while faults befall the daemon, and the check of that."""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from allhands import kv
from allhands.coordinator.client import Control
from allhands.coordinator.endpoint import Endpoint
from allhands.coordinator.lock import Lock
from allhands.errors import CoordinatorUnavailable, LockLost, NotFound, StoreTimeout
from support.linearizability.checker import Undecided, find_contradiction
from support.linearizability.clients import Progress
from support.linearizability.disturbances import Disturber
from support.linearizability.history import UNKNOWN, History, Operation
from support.served_daemon import ServedDaemon

JOB = "locks"
LOCKERS = 4
_TIMEOUT = 20.0
_TTL = 60.0
"""Far longer than any fault: that no lock is lost by then is not what this is about."""
_CALLS_A_LOCK = 400
"""Then another lock is used: the search for an order takes longer with each call."""


@dataclass(frozen=True, slots=True)
class LockState:
    """Holder of a lock, and the revision of the last one."""

    holder: int | None = None
    revision: int = 0


class LockModel:
    """A lock: one holder at a time, each with a greater revision than the one before."""

    def make_state(self) -> LockState:
        """See `Model`."""
        return LockState()

    def apply(self, state: LockState, operation: Operation) -> LockState | None:
        """See `Model`."""
        if operation.verb == "acquire":
            if operation.result is UNKNOWN:
                return state
            is_possible = state.holder is None and operation.result > state.revision
            return LockState(operation.client, operation.result) if is_possible else None
        is_held = state.holder == operation.client
        return LockState(None, state.revision) if is_held else None


class _Counts:
    """Numbers that each holder adds one to, by a read and a write; keys are of the locks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.made: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()

    def add_one(self, control: Control, name: str, lock: Lock) -> None:
        """Add one, fenced by the lock."""
        key = f"count/{name}"
        try:
            before = int(control.get(key))
        except NotFound:
            before = 0
        try:
            put = kv.Put(key, str(before + 1))
            is_made = control.transaction([lock.condition], [put]).succeeded
        except (CoordinatorUnavailable, StoreTimeout):
            with self._lock:
                self.unknown[name] += 1
            raise
        with self._lock:
            self.made[name] += is_made

    def find_faults(self, control: Control) -> Iterator[str]:
        """Describe the numbers that are not what was added."""
        for name, made in self.made.items():
            held = int(control.get(f"count/{name}"))
            if not made <= held <= made + self.unknown[name]:
                yield f"{name}: {made} acknowledged, {self.unknown[name]} unknown, but {held}"


class Locker:
    """One caller, with connections of its own."""

    def __init__(self, number: int, endpoint: Endpoint, history: History, seen: Progress) -> None:
        self._number = number
        self._endpoint = endpoint
        self._history = history
        self._progress = seen

    def run(self, counts: _Counts) -> None:
        """Acquire and release until the end."""
        with Control(self._endpoint, job=JOB, timeout=_TIMEOUT) as control:
            while not self._progress.is_over:
                self._hold(control, f"lock{self._progress.calls // _CALLS_A_LOCK}", counts)

    def _hold(self, control: Control, name: str, counts: _Counts) -> None:
        lock = control.lock(name, ttl=_TTL)
        begin = self._history.read_clock()
        try:
            lock.acquire()
        except (CoordinatorUnavailable, StoreTimeout, LockLost):
            self._progress.note(unknown=True)  # and not held, whatever the coordinator made of it
            self._progress.wait(lambda: self._progress.is_served)
            return
        held = self._record(name, begin, "acquire", lock.revision)
        try:
            counts.add_one(control, name, lock)
        except (CoordinatorUnavailable, StoreTimeout):
            self._progress.note(unknown=True)
        begin = self._history.read_clock()
        try:
            lock.release()
        except LockLost:
            begin = held  # or at any time since
        self._record(name, begin, "release", None)

    def _record(self, name: str, begin: int, verb: str, result: int | None) -> int:
        end = self._history.read_clock()
        self._history.record(name, Operation(self._number, begin, end, verb, (), result))
        self._progress.note()
        return end


@dataclass(frozen=True, slots=True)
class LockRun:
    """Result of a run."""

    acquisitions: int
    unknown: int
    faults: tuple[str, ...]
    contradictions: dict[str, str]
    """By the lock, or by its number."""


def run_locks(daemon: ServedDaemon, calls: int, faults: int) -> LockRun:
    """Have clients hold locks of a daemon that faults befall; check that one held at a time.

    The disk is not filled: what locks keep is small, so that a log without room may go on for long.
    """
    history, progress, counts = History(), Progress(), _Counts()
    disturber = Disturber(daemon, None, progress, calls // (faults + 1))
    daemon.start()
    with _running(daemon.endpoint, history, progress, counts):
        made = disturber.disturb(faults)
    contradictions: dict[str, str] = defaultdict(str)
    with Control(daemon.endpoint, job=JOB, timeout=_TIMEOUT) as control:
        for place, fault in enumerate(counts.find_faults(control)):
            contradictions[f"count {place}"] = fault
    for name, operations in history.parts.items():
        try:
            if (why := find_contradiction(LockModel(), operations)) is not None:
                contradictions[name] = str(why)
        except Undecided as error:
            contradictions[name] = f"undecided: {error}"
    acquisitions = sum(one.verb == "acquire" for one in history)
    return LockRun(acquisitions, progress.unknown, tuple(made), dict(contradictions))


@contextmanager
def _running(
    endpoint: Endpoint, history: History, seen: Progress, counts: _Counts
) -> Iterator[None]:
    """Run the clients beside a block, and raise what they raise."""

    def run(number: int) -> None:
        try:
            Locker(number, endpoint, history, seen).run(counts)
        except BaseException:
            seen.fail()
            raise

    with ThreadPoolExecutor(LOCKERS) as threads:
        running = [threads.submit(run, number) for number in range(LOCKERS)]
        try:
            yield
        finally:
            seen.end()
            for one in running:
                one.result()
