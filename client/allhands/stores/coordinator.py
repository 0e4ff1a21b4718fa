"""The store of a job at the coordinator."""

from collections.abc import Sequence

from allhands.coordinator.client import Control
from allhands.coordinator.endpoint import Endpoint
from allhands.coordinator.kv.values import encode, pair_up
from allhands.deadlines import Timeout, to_seconds
from allhands.tracebacks import trims_tracebacks


@trims_tracebacks
class CoordinatorStore:
    """A `Store` at a job's coordinator; closing `control` closes the store."""

    def __init__(self, control: Control, timeout: Timeout = 30.0) -> None:
        self._control = control
        self._timeout = to_seconds(timeout)

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint of the coordinator with the keys."""
        return self._control.endpoint

    @property
    def timeout(self) -> float:
        return self._timeout

    def set_timeout(self, timeout: Timeout) -> None:
        self._timeout = to_seconds(timeout)

    def set(self, key: str, value: bytes | str) -> None:
        self._control.put(key, value)

    def get(self, key: str) -> bytes:
        return self._control.get(key, wait=True, timeout=self._timeout)

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        limit = self._timeout if timeout is None else to_seconds(timeout)
        if keys:
            self._control.wait(keys, timeout=limit)

    def add(self, key: str, amount: int) -> int:
        return self._control.add(key, amount)

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        found = self._control.cas(key, expected, desired).value
        return encode(expected) if found is None else found

    def append(self, key: str, value: bytes | str) -> None:
        self._control.append(key, value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        if not keys:
            return []
        return [*self._control.multi_get(keys, wait=True, timeout=self._timeout)]

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        if pairs := pair_up(keys, values):
            self._control.multi_put(pairs)

    def delete_key(self, key: str) -> bool:
        return self._control.delete(key)

    def num_keys(self) -> int:
        return self._control.count()

    def list_keys(self, prefix: str = "") -> list[str]:
        return [*self._control.list(prefix)]

    def check(self, keys: Sequence[str]) -> bool:
        # Asks for names, since a reply has no room for many large values. So several keys take
        # several steps: a key deleted between two of them may have been counted.
        return all(key in self._control.list(key) for key in keys)

    def queue_push(self, key: str, value: bytes | str) -> None:
        self._control.queue_push(key, value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        return self._control.queue_pop(key, wait=block, timeout=self._timeout)

    def queue_len(self, key: str) -> int:
        return self._control.queue_length(key)

    def has_extended_api(self) -> bool:
        return True

    def clone(self) -> "CoordinatorStore":
        """Return a store over the same connection."""
        return CoordinatorStore(self._control, self._timeout)
