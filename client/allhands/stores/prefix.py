"""A view of another store, under a prefix of its keys."""

from collections.abc import Sequence

from allhands.coordinator.kv.values import check_key
from allhands.deadlines import Timeout
from allhands.stores.contract import Store


class PrefixStore:
    """The `Store` of those keys of `store` that begin with `prefix` and a slash.

    The timeout is that of `store`; setting it sets it there.
    """

    def __init__(self, prefix: str, store: Store) -> None:
        self.prefix = prefix
        self._prefix = f"{prefix}/"
        self._store = store

    @property
    def underlying_store(self) -> Store:
        return self._store

    @property
    def timeout(self) -> float:
        return self._store.timeout

    def set_timeout(self, timeout: Timeout) -> None:
        self._store.set_timeout(timeout)

    def set(self, key: str, value: bytes | str) -> None:
        self._store.set(self._add_prefix(key), value)

    def get(self, key: str) -> bytes:
        return self._store.get(self._add_prefix(key))

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        self._store.wait(self._add_prefixes(keys), timeout)

    def add(self, key: str, amount: int) -> int:
        return self._store.add(self._add_prefix(key), amount)

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        return self._store.compare_set(self._add_prefix(key), expected, desired)

    def append(self, key: str, value: bytes | str) -> None:
        self._store.append(self._add_prefix(key), value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self._store.multi_get(self._add_prefixes(keys))

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        self._store.multi_set(self._add_prefixes(keys), values)

    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(self._add_prefix(key))

    def num_keys(self) -> int:
        return len(self._store.list_keys(self._prefix))

    def list_keys(self, prefix: str = "") -> list[str]:
        found = self._store.list_keys(self._prefix + prefix)
        return [key.removeprefix(self._prefix) for key in found]

    def check(self, keys: Sequence[str]) -> bool:
        return self._store.check(self._add_prefixes(keys))

    def queue_push(self, key: str, value: bytes | str) -> None:
        self._store.queue_push(self._add_prefix(key), value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        return self._store.queue_pop(self._add_prefix(key), block)

    def queue_len(self, key: str) -> int:
        return self._store.queue_len(self._add_prefix(key))

    def has_extended_api(self) -> bool:
        return self._store.has_extended_api()

    def clone(self) -> "PrefixStore":
        return PrefixStore(self.prefix, self._store.clone())

    def _add_prefix(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _add_prefixes(self, keys: Sequence[str]) -> list[str]:
        return [self._add_prefix(key) for key in keys]
