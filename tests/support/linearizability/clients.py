"""Clients that call a coordinator at random, and record their calls."""

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from allhands import kv
from allhands.coordinator.client import Control
from allhands.coordinator.endpoint import Endpoint
from allhands.coordinator.kv.records import KeyRange, KeyRecord, TxnResult
from allhands.errors import CoordinatorUnavailable, NotFound, Refused, StoreTimeout
from allhands.testing.poll import poll_until
from support.linearizability.history import UNKNOWN, UNKNOWN_END, History, Operation
from support.linearizability.models import ABSENT

JOB = "histories"
QUEUE_PART = "queue"
_OPERATIONS_A_PART = 100
"""Then other keys are used: the search for an order takes longer with each call beside others."""
_PARTS_AT_ONCE = 4
_TIMEOUT = 20.0
_LARGE = 3_000
"""Bytes of the largest values, so that the log has snapshots."""

KEYS = "abnr"
"""Keys of a part: two that are used together, a number, and one that is set by its revision."""

Call = tuple[str, tuple[Any, ...]]


def perform(control: Control, part: str, verb: str, arguments: tuple[Any, ...]) -> Any:
    """Make a call; return the result as the models have it. Keys are of the part."""
    try:
        return _VERBS[verb](control, part, *arguments)
    except NotFound:
        return ABSENT


_VERBS: dict[str, Callable[..., Any]] = {
    "put": lambda control, part, key, value: control.put(part + key, value),
    "multi_put": lambda control, part, *pairs: control.multi_put(
        {part + key: value for key, value in pairs}
    ),
    "get": lambda control, part, key: control.get(part + key),
    "multi_get": lambda control, part, *keys: control.multi_get([part + key for key in keys]),
    "add": lambda control, part, key, amount: control.add(part + key, amount),
    "append": lambda control, part, key, value: control.append(part + key, value),
    "cas": lambda control, part, key, expected, desired: _name_result(
        control.cas(part + key, expected, desired)
    ),
    "delete": lambda control, part, key: control.delete(part + key),
    "list": lambda control, part, prefix: tuple(
        key.removeprefix(part) for key in control.list(part + prefix)
    ),
    "compare_and_set": lambda control, part, key, revision, value: control.compare_and_set(
        part + key, value, revision=revision
    ),
    "get_record": lambda control, part, key: _name_record(control.get_record(part + key)),
    "exchange": lambda control, part, expected, value: _name_exchange(
        control.transaction(
            [kv.value(part + "a") == expected],
            [kv.Put(part + "a", value), kv.Put(part + "b", value), kv.Delete(part + "n")],
            [kv.Get(part + "a")],
        )
    ),
    "push": lambda control, part, value: control.queue_push(part, value),
    "pop": lambda control, part: control.queue_pop(part),
    "length": lambda control, part: control.queue_length(part),
}
_READS = {"get", "get_record", "multi_get", "list", "length"}


def _name_result(result: Any) -> tuple[bool, bytes | None]:
    return result.swapped, result.value


def _name_record(record: KeyRecord | None) -> Any:
    return ABSENT if record is None else (record.value, record.version, record.mod_revision)


def _name_exchange(result: TxnResult) -> Any:
    if result:
        return True, result.revision, None
    [found] = result.results
    assert isinstance(found, KeyRange)
    return False, result.revision, found.records[0].value if found else ABSENT


class Choices:
    """The calls to make, shared by all clients: parts of the state, each for a while."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._values = itertools.count()
        self._numbers = itertools.count()
        self._parts = [self._name_part() for _ in range(_PARTS_AT_ONCE)]
        self._left = [_OPERATIONS_A_PART] * _PARTS_AT_ONCE
        self._last: dict[str, bytes] = {}
        """A value that was written not long ago, by part."""
        self._revisions: dict[tuple[str, str], int] = {}
        """Of a key, as an answer has told."""

    def choose(self) -> tuple[str, Call]:
        """Return a part and a call on it."""
        with self._lock:
            place = self._chance.randrange(_PARTS_AT_ONCE)
            if not self._left[place]:
                self._parts[place] = self._name_part()
                self._left[place] = _OPERATIONS_A_PART
            self._left[place] -= 1
            part = self._parts[place]
            is_queue = part.startswith(QUEUE_PART)
            return part, self._choose_of_queue() if is_queue else self._choose_of_keys(part)

    def note_result(self, part: str, verb: str, arguments: tuple[Any, ...], result: Any) -> None:
        """Note the revision of a key that an answer tells."""
        match verb, result:
            case (("put" | "compare_and_set"), int()):
                self._revisions[part, arguments[0]] = result
            case "get_record", (_, _, revision):
                self._revisions[part, arguments[0]] = revision

    def _name_part(self) -> str:
        number = next(self._numbers)
        return f"{QUEUE_PART}{number}/" if number % 4 == 3 else f"keys{number}/"

    def _choose_of_queue(self) -> Call:
        verb = self._chance.choice(("push", "push", "pop", "pop", "length"))
        return verb, (self._make_value(),) if verb == "push" else ()

    def _choose_of_keys(self, part: str) -> Call:
        value = self._make_value()
        expected = self._last.get(part, b"")
        place = self._chance.choice("ar")
        revision = self._revisions.get((part, place), 0)
        call = self._chance.choice(
            (
                ("put", ("a", value)),
                ("get", ("a",)),
                ("get", ("b",)),
                ("add", ("n", self._chance.randint(1, 3))),
                ("get", ("n",)),
                ("append", ("b", value[:4])),
                ("cas", ("a", expected, value)),
                ("delete", (self._chance.choice(KEYS),)),
                ("put", ("r", value)),
                ("get_record", (self._chance.choice(KEYS),)),
                ("compare_and_set", (place, revision, value)),
                ("exchange", (expected, value)),
                ("multi_put", (("a", value), ("b", value))),
                ("multi_get", ("a", "b")),
                ("list", ("",)),
            )
        )
        if call[0] in ("put", "cas", "multi_put", "compare_and_set", "exchange"):
            self._last[part] = value
        return call

    def _make_value(self) -> bytes:
        value = b"%d" % next(self._values)
        return value if self._chance.random() < 0.9 else value.ljust(_LARGE, b".")


class Progress:
    """Counts of the clients' calls, for faults in between."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.calls = self.unknown = self.refused = 0
        self.is_served = True
        """Whether there is a daemon: after a lost connection clients wait until there is."""
        self.is_over = self.has_failed = False

    def note(self, *, unknown: bool = False, refused: bool = False) -> None:
        """Count a call that has ended."""
        with self._changed:
            self.calls += 1
            self.unknown += unknown
            self.refused += refused
            self._changed.notify_all()

    def set_served(self, is_served: bool) -> None:
        with self._changed:
            self.is_served = is_served
            self._changed.notify_all()

    def end(self) -> None:
        """Have the clients make no more calls. Idempotent."""
        with self._changed:
            self.is_over = True

    def fail(self) -> None:
        """Note that a client has failed: nobody needs to wait for progress."""
        with self._changed:
            self.has_failed = True
            self._changed.notify_all()

    def wait(self, claim: Callable[[], bool], patience: float = 60.0) -> None:
        """Wait until a claim about this holds.

        Raises:
            AssertionError: it did not, or a client failed.
        """
        with self._changed:
            assert self._changed.wait_for(lambda: claim() or self.has_failed, patience), (
                f"stuck after {self.calls} calls, {self.refused} of them refused"
            )
            assert not self.has_failed, "a client has failed"

    def wait_long(self, seconds: float) -> None:
        """Wait for time to pass, unless a client fails."""
        over = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: time.monotonic() >= over or self.has_failed, seconds)


class Client:
    """One caller, with connections of its own."""

    def __init__(self, number: int, endpoint: Endpoint, history: History, seen: Progress) -> None:
        self._number = number
        self._control = Control(endpoint, job=JOB, timeout=_TIMEOUT)
        self._history = history
        self._progress = seen

    def run(self, choices: Choices) -> None:
        """Call until the end."""
        with self._control:
            while not self._progress.is_over:
                part, (verb, arguments) = choices.choose()
                self._call(part, verb, arguments, choices)

    def read_all(self, parts: Sequence[str]) -> None:
        """Read parts of the state as they are in the end."""
        with self._control:
            for part in parts:
                if part.startswith(QUEUE_PART):
                    self._call(part, "length", ())
                    self._call(part, "pop", ())
                else:
                    self._call(part, "list", ("",))
                    for key in KEYS:
                        self._call(part, "get", (key,))
                        self._call(part, "get_record", (key,))

    def _call(
        self, part: str, verb: str, arguments: tuple[Any, ...], choices: Choices | None = None
    ) -> None:
        begin = self._history.read_clock()
        try:
            result = perform(self._control, part, verb, arguments)
        except Refused as error:
            if "log is full" not in str(error):
                raise
            # It has had no effect, and none may be seen later.
            self._progress.note(refused=True)
            return
        except (CoordinatorUnavailable, StoreTimeout):
            if verb not in _READS:
                lost = Operation(self._number, begin, UNKNOWN_END, verb, arguments, UNKNOWN)
                self._history.record(part, lost)
            self._progress.note(unknown=True)
            self._progress.wait(lambda: self._progress.is_served)
            # Else every call would have an unknown outcome, until a connection is tried again.
            poll_until(self._is_connected, _TIMEOUT)
            return
        end = self._history.read_clock()
        self._history.record(part, Operation(self._number, begin, end, verb, arguments, result))
        if choices is not None:
            choices.note_result(part, verb, arguments, result)
        self._progress.note()

    def _is_connected(self) -> bool:
        try:
            self._control.count()
        except CoordinatorUnavailable:
            return False
        return True


@contextlib.contextmanager
def running_clients(
    count: int, endpoint: Endpoint, history: History, seen: Progress, seed: int
) -> Iterator[None]:
    """Run clients beside a block, until the end of `seen`; raise what they raise."""
    choices = Choices(seed)

    def run(number: int) -> None:
        try:
            Client(number, endpoint, history, seen).run(choices)
        except BaseException:
            seen.fail()
            raise

    with ThreadPoolExecutor(count) as threads:
        running = [threads.submit(run, number) for number in range(count)]
        try:
            yield
        finally:
            seen.end()
            for one in running:
                one.result()
