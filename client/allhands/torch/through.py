"""A store of torch.distributed as a `Store` of this package: what it takes to meet through it."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from allhands.errors import StoreTimeout
from allhands.timeout import Timeout, seconds
from allhands.values import encode


class Through:
    """Keys and values of a store of PyTorch's."""

    def __init__(self, store: Any, timeout: float) -> None:
        self._store = store
        self._timeout = timeout

    def add(self, key: str, amount: int) -> int:
        return int(self._store.add(key, amount))

    def set(self, key: str, value: bytes | str) -> None:
        self._store.set(key, encode(value))

    def get(self, key: str) -> bytes:
        return bytes(self._store.get(key))

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        limit = self._timeout if timeout is None else seconds(timeout)
        try:
            self._store.wait(list(keys), timedelta(seconds=limit))
        except dist.DistStoreError as error:
            raise StoreTimeout(f"timeout: nobody has set {list(keys)}: {error}") from error
