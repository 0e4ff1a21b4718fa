"""A store in the memory of one process, for its threads."""

import re
import threading
from collections.abc import Sequence

from allhands.deadlines import effective_for
from allhands.errors import Refused, StoreTimeout
from allhands.timeout import Timeout, seconds
from allhands.values import checked, encode, paired, quoted

_INTEGER = re.compile(rb"[+-]?[0-9]{1,19}")
_INT64 = range(-(2**63), 2**63)


class HashStore:
    """A `Store` of one process: what its threads share."""

    def __init__(self, timeout: Timeout = 30.0) -> None:
        self._timeout = seconds(timeout)
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    @property
    def timeout(self) -> float:
        return self._timeout

    def set_timeout(self, timeout: Timeout) -> None:
        self._timeout = seconds(timeout)

    def set(self, key: str, value: bytes | str) -> None:
        self.multi_set([key], [value])

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        with self._changed:
            self._await(keys, self._timeout if timeout is None else seconds(timeout))

    def add(self, key: str, amount: int) -> int:
        with self._changed:
            held = self._values.get(key, b"0")
            if not _INTEGER.fullmatch(held):
                raise Refused(f"key {key!r} holds no integer, but {held[:20]!r}")
            total = int(held) + amount
            if total not in _INT64:
                raise Refused(f"adding {amount} to key {key!r} would leave the range of 64 bits")
            self._values[checked(key)] = str(total).encode()
            self._changed.notify_all()
            return total

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        with self._changed:
            if self._values.get(key, b"") == encode(expected):
                self._values[checked(key)] = encode(desired)
                self._changed.notify_all()
            return self._values.get(key, encode(expected))

    def append(self, key: str, value: bytes | str) -> None:
        with self._changed:
            self._values[checked(key)] = self._values.get(key, b"") + encode(value)
            self._changed.notify_all()

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        with self._changed:
            self._await(keys, self._timeout)
            return [self._values[key] for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        pairs = paired(keys, values)
        with self._changed:
            self._values.update(pairs)
            self._changed.notify_all()

    def delete_key(self, key: str) -> bool:
        with self._changed:
            return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        with self._changed:
            return len(self._values)

    def list_keys(self, prefix: str = "") -> list[str]:
        with self._changed:
            return sorted(key for key in self._values if key.startswith(prefix))

    def check(self, keys: Sequence[str]) -> bool:
        with self._changed:
            return not self._missing(keys)

    def _await(self, keys: Sequence[str], limit: float) -> None:
        """Wait, holding the lock, until all the keys exist."""
        limit = effective_for(lambda: f"wait for {quoted(keys)}", limit)
        if not self._changed.wait_for(lambda: not self._missing(keys), limit):
            raise StoreTimeout(f"timeout: nobody set {quoted(self._missing(keys))} in {limit:g} s")

    def _missing(self, keys: Sequence[str]) -> list[str]:
        return [key for key in keys if key not in self._values]
