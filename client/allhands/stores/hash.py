"""A store in memory, for the threads of one process."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field

from allhands.coordinator.kv.values import add_decimal, check_key, encode, format_keys, pair_up
from allhands.deadlines import Timeout, clip_or_raise, to_seconds
from allhands.errors import NotFound, StoreTimeout
from allhands_proto.quick_dataclass import dataclass


@dataclass(slots=True)
class _Contents:
    values: dict[str, bytes] = field(default_factory=dict)
    queues: dict[str, deque[bytes]] = field(default_factory=dict)
    """None of them empty."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    """Its lock is held by who looks or writes."""


class HashStore:
    """A `Store` in memory, shared by the threads of one process."""

    def __init__(self, timeout: Timeout = 30.0) -> None:
        self._timeout = to_seconds(timeout)
        self._contents = _Contents()

    @property
    def timeout(self) -> float:
        return self._timeout

    def set_timeout(self, timeout: Timeout) -> None:
        self._timeout = to_seconds(timeout)

    def set(self, key: str, value: bytes | str) -> None:
        self.multi_set([key], [value])

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        with self._contents.changed:
            self._wait_keys(keys, self._timeout if timeout is None else to_seconds(timeout))

    def add(self, key: str, amount: int) -> int:
        with self._contents.changed:
            total = add_decimal(key, self._contents.values.get(key, b"0"), amount)
            self._set_locked(key, str(total).encode())
            return total

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        with self._contents.changed:
            if self._contents.values.get(key, b"") == encode(expected):
                self._set_locked(key, encode(desired))
            return self._contents.values.get(key, encode(expected))

    def append(self, key: str, value: bytes | str) -> None:
        with self._contents.changed:
            self._set_locked(key, self._contents.values.get(key, b"") + encode(value))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        with self._contents.changed:
            self._wait_keys(keys, self._timeout)
            return [self._contents.values[key] for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        pairs = pair_up(keys, values)
        with self._contents.changed:
            self._contents.values.update(pairs)
            self._contents.changed.notify_all()

    def delete_key(self, key: str) -> bool:
        with self._contents.changed:
            return self._contents.values.pop(key, None) is not None

    def num_keys(self) -> int:
        with self._contents.changed:
            return len(self._contents.values)

    def list_keys(self, prefix: str = "") -> list[str]:
        with self._contents.changed:
            return sorted(key for key in self._contents.values if key.startswith(prefix))

    def check(self, keys: Sequence[str]) -> bool:
        with self._contents.changed:
            return not self._find_missing(keys)

    def queue_push(self, key: str, value: bytes | str) -> None:
        with self._contents.changed:
            self._contents.queues.setdefault(check_key(key), deque()).append(encode(value))
            self._contents.changed.notify_all()

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        queues = self._contents.queues
        with self._contents.changed:
            if block:
                self._wait_for(
                    lambda: key in queues, self._timeout, lambda: f"pushed to queue {key!r}"
                )
            if key not in queues:
                raise NotFound(f"queue {key!r} is empty")
            value = queues[key].popleft()
            if not queues[key]:
                del queues[key]
            return value

    def queue_len(self, key: str) -> int:
        with self._contents.changed:
            return len(self._contents.queues.get(key, ()))

    def has_extended_api(self) -> bool:
        return True

    def clone(self) -> "HashStore":
        other = HashStore(self._timeout)
        other._contents = self._contents
        return other

    def _set_locked(self, key: str, value: bytes) -> None:
        self._contents.values[check_key(key)] = value
        self._contents.changed.notify_all()

    def _wait_keys(self, keys: Sequence[str], limit: float) -> None:
        """Wait until all the keys exist."""
        self._wait_for(
            lambda: not self._find_missing(keys),
            limit,
            lambda: f"set {format_keys(self._find_missing(keys))}",
        )

    def _wait_for(
        self, is_ready: Callable[[], bool], limit: float, describe_missing: Callable[[], str]
    ) -> None:
        limit = clip_or_raise(lambda: f"wait until somebody has {describe_missing()}", limit)
        if not self._contents.changed.wait_for(is_ready, limit):
            raise StoreTimeout(f"timeout: nobody {describe_missing()} in {limit:g} s")

    def _find_missing(self, keys: Sequence[str]) -> list[str]:
        return [key for key in keys if key not in self._contents.values]
