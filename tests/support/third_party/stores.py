"""A store in a dict, written from the docstrings of `Store` alone, and broken variants."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import allhands as ah
from allhands.testing.conformance import Store

Timeout = float | timedelta
Value = bytes | str


def as_bytes(value: Value) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def as_seconds(timeout: Timeout) -> float:
    found = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    if not 0 <= found < float("inf"):
        raise ValueError(f"no timeout: {timeout}")
    return found


def as_key(key: str) -> str:
    if not key:
        raise ValueError("a key has a name")
    return key


@dataclass
class Shared:
    """State common to a store and all clones."""

    values: dict[str, bytes] = field(default_factory=dict)
    queues: dict[str, deque[bytes]] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)


class DictStore:
    """A store of the threads of one process."""

    def __init__(self, timeout: Timeout = 30.0, shared: Shared | None = None) -> None:
        self._timeout = as_seconds(timeout)
        self.shared = shared or Shared()
        self.values, self.queues = self.shared.values, self.shared.queues
        self.changed = self.shared.changed

    @property
    def timeout(self) -> float:
        return self._timeout

    def set_timeout(self, timeout: Timeout) -> None:
        self._timeout = as_seconds(timeout)

    def until(
        self, claim: Callable[[], object], timeout: float, missing: Callable[[], object]
    ) -> None:
        if not self.changed.wait_for(lambda: bool(claim()), timeout):
            raise ah.StoreTimeout(f"timeout: nobody has set {missing()}")

    def set(self, key: str, value: Value) -> None:
        with self.changed:
            self.values[as_key(key)] = as_bytes(value)
            self.changed.notify_all()

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        seconds = self._timeout if timeout is None else as_seconds(timeout)

        def missing() -> list[str]:
            return [as_key(key) for key in keys if key not in self.values]

        with self.changed:
            self.until(lambda: not missing(), seconds, missing)

    def add(self, key: str, amount: int) -> int:
        with self.changed:
            try:
                total = int(self.values.get(as_key(key), b"0")) + amount
            except ValueError:
                raise ah.Refused(f"{key} holds no number") from None
            if not -(2**63) <= total < 2**63:
                raise ah.Refused(f"{key} would leave 64 bits")
            self.set(key, str(total))
            return total

    def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        with self.changed:
            if self.values.get(as_key(key), b"") == as_bytes(expected):
                self.set(key, desired)
            return self.values.get(key, as_bytes(expected))

    def append(self, key: str, value: Value) -> None:
        with self.changed:
            self.set(key, self.values.get(key, b"") + as_bytes(value))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        with self.changed:
            self.wait(keys)
            return [self.values[key] for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        if len(keys) != len(values):
            raise ValueError(f"{len(keys)} keys, but {len(values)} values")
        with self.changed:
            for key in keys:
                as_key(key)
            for key, value in zip(keys, values, strict=True):
                self.set(key, value)

    def delete_key(self, key: str) -> bool:
        with self.changed:
            return self.values.pop(as_key(key), None) is not None

    def num_keys(self) -> int:
        return len(self.values)

    def list_keys(self, prefix: str = "") -> list[str]:
        with self.changed:
            return sorted(key for key in self.values if key.startswith(prefix))

    def check(self, keys: Sequence[str]) -> bool:
        return all(as_key(key) in self.values for key in keys)

    def queue_push(self, key: str, value: Value) -> None:
        with self.changed:
            self.queues.setdefault(as_key(key), deque()).append(as_bytes(value))
            self.changed.notify_all()

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        with self.changed:
            if block:
                self.until(lambda: self.queues.get(as_key(key)), self._timeout, lambda: key)
            elif not self.queues.get(as_key(key)):
                raise ah.NotFound(f"queue {key} is empty")
            return self.queues[key].popleft()

    def queue_len(self, key: str) -> int:
        return len(self.queues.get(as_key(key), ()))

    def has_extended_api(self) -> bool:
        return True

    def clone(self) -> Store:
        return type(self)(self._timeout, self.shared)


class NonWaitingStore(DictStore):
    """A store whose `get` does not wait."""

    def get(self, key: str) -> bytes:
        return self.values.get(key, b"")


class SilentStore(DictStore):
    """A store whose `set` wakes no waiting caller."""

    def set(self, key: str, value: Value) -> None:
        with self.changed:
            self.values[as_key(key)] = as_bytes(value)


class OverwritingStore(DictStore):
    """A store whose `compare_set` ignores the expected value."""

    def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        self.set(key, desired)
        return self.get(key)


class UnsortedStore(DictStore):
    """A store that lists keys in the order of insertion."""

    def list_keys(self, prefix: str = "") -> list[str]:
        return [key for key in self.values if key.startswith(prefix)]


class StackStore(DictStore):
    """A store whose queues give the last value first."""

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        with self.changed:
            self.queues.get(key, deque()).reverse()
            found = super().queue_pop(key, block)
            self.queues[key].reverse()
            return found
