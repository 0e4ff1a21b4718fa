"""Adapter from a store of torch.distributed to `Store`, for the rendezvous."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from allhands.coordinator.kv.values import encode
from allhands.deadlines import Timeout, to_seconds
from allhands.errors import StoreTimeout
from allhands.torch.rendezvous.store import Store, unwrap_prefix

_MIN_SECONDS = 0.001
"""Seconds: a FileStore takes none for no end."""


class TorchStoreAdapter:
    """Keys and values of a store of PyTorch's."""

    def __init__(self, store: Any, timeout: float) -> None:
        self._store = store
        self._timeout = timeout

    @property
    def underlying_store(self) -> Any:
        """The store below PrefixStores, of this package or PyTorch."""
        found = unwrap_prefix(self._store)
        return found.native if isinstance(found, Store) else found

    def set(self, key: str, value: bytes | str) -> None:
        self._store.set(key, encode(value))

    def get(self, key: str) -> bytes:
        return bytes(self._store.get(key))

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._store.check(list(keys)))

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        limit = self._timeout if timeout is None else to_seconds(timeout)
        try:
            self._store.wait(list(keys), timedelta(seconds=max(limit, _MIN_SECONDS)))
        except RuntimeError as error:
            # A FileStore has no class for it, and only their texts have a word in common.
            if isinstance(error, dist.DistNetworkError) or "timeout" not in str(error).lower():
                raise
            raise StoreTimeout(f"timeout: nobody has set {list(keys)}: {error}") from error
