"""Store of torch.distributed over a store of this package.

What holds a C++ object only loses the Python half of it: PyTorch's PrefixStore, and a process group
of another backend, do not keep a Store alive. Hold it yourself for as long as they are used.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from allhands import stores
from allhands.coordinator.client import connect
from allhands.deadlines import Timeout, to_seconds
from allhands.errors import AllhandsError, CoordinatorUnavailable, NotFound

_TIMEOUT = 30.0


class Store(dist.Store):  # type: ignore[misc]
    """The keys of a `stores.Store`, with the methods of PyTorch's TCPStore, from any thread.

    Values are bytes, or str to be encoded as UTF-8; `get` gives bytes. Waits end at `timeout`, as
    set_timeout has it, also where that was called on a PrefixStore of this one.

    Errors are PyTorch's: DistStoreError with "timeout" in its text where a wait has ended without
    its keys; DistNetworkError where the coordinator is not there any more; DistQueueEmptyError.
    """

    def __init__(self, native: stores.Store, timeout: Timeout | None = None) -> None:
        """Wrap a store of this package; timeout None: the store's."""
        super().__init__()
        self._native = native.clone()  # whose timeout nobody else sets
        self._clones: list[Store] = []
        limit = native.timeout if timeout is None else to_seconds(timeout)
        self.set_timeout(timedelta(seconds=limit))

    @classmethod
    def connect(
        cls, url: str | None = None, *, token: str | None = None, timeout: Timeout = _TIMEOUT
    ) -> "Store":
        """Return the store of a job at its coordinator, `ah://host:port/job`.

        Without a URL that is ALLHANDS_URL, else this user's only coordinator on this host. It
        connects with its first call.

        Raises:
            ValueError: the URL is malformed, or names no job.
            CoordinatorUnavailable: no URL was given, and this user has no coordinator here.
        """
        limit = to_seconds(timeout)
        control = connect(url, token=token, timeout=limit)
        if control.job_name is None:
            control.close()
            raise ValueError(f"a store is that of a job: write ah://host:port/job, not {url!r}")
        return cls(stores.CoordinatorStore(control, limit))

    @property
    def native(self) -> stores.Store:
        """The wrapped store."""
        return self._native

    def set(self, key: str, value: bytes | str) -> None:
        with _ErrorTranslation():
            self._native.set(key, value)

    def get(self, key: str) -> bytes:
        with _ErrorTranslation():
            return self._timed_store.get(key)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        with _ErrorTranslation():
            self._native.wait(keys, _to_seconds(self.timeout if timeout is None else timeout))

    def add(self, key: str, amount: int) -> int:
        with _ErrorTranslation():
            return self._native.add(key, amount)

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        with _ErrorTranslation():
            return self._native.compare_set(key, expected, desired)

    def append(self, key: str, value: bytes | str) -> None:
        with _ErrorTranslation():
            self._native.append(key, value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        with _ErrorTranslation():
            return self._timed_store.multi_get(keys)

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        if len(keys) != len(values):
            raise dist.DistStoreError(f"{len(keys)} keys, but {len(values)} values")
        with _ErrorTranslation():
            self._native.multi_set(keys, values)

    def delete_key(self, key: str) -> bool:
        with _ErrorTranslation():
            return self._native.delete_key(key)

    def num_keys(self) -> int:
        with _ErrorTranslation():
            return self._native.num_keys()

    def list_keys(self) -> list[str]:
        with _ErrorTranslation():
            return self._native.list_keys()

    def check(self, keys: Sequence[str]) -> bool:
        """Say whether all the keys exist now, or name queues in which there is something."""
        with _ErrorTranslation():
            return self._native.check(keys) or all(
                self._native.check([key]) or self._native.queue_len(key) for key in keys
            )

    # PyTorch's C++ looks for some under these names.
    deleteKey, getNumKeys = delete_key, num_keys

    def queue_push(self, key: str, value: bytes | str) -> None:
        with _ErrorTranslation():
            self._native.queue_push(key, value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        with _ErrorTranslation():
            return self._timed_store.queue_pop(key, block)

    def queue_len(self, key: str) -> int:
        with _ErrorTranslation():
            return self._native.queue_len(key)

    def has_extended_api(self) -> bool:
        return True

    def clone(self) -> "Store":
        """Return a store of the same keys with a separate timeout, valid as long as this store."""
        clone = Store(self._native, self.timeout)
        self._clones.append(clone)
        return clone

    def __repr__(self) -> str:
        return f"Store({self._native!r})"

    @property
    def _timed_store(self) -> stores.Store:
        """The store for waits under its timeout."""
        # PyTorch's C++ sets its own, of which Python is not told.
        if (limit := _to_seconds(self.timeout)) != self._native.timeout:
            self._native.set_timeout(limit)
        return self._native


def _to_seconds(timeout: timedelta) -> float:
    """Return a timeout in seconds; negative ones mean no limit in PyTorch."""
    return max(timeout.total_seconds(), 0.0)


def unwrap_prefix(store: Any) -> Any:
    """Return the store below PyTorch's PrefixStores."""
    return getattr(store, "_underlying_non_prefix_store", store)


class _ErrorTranslation:
    """Translates errors of this package into those of PyTorch's stores."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        match error:
            case NotFound():
                raise dist.QueueEmptyError(str(error)) from error
            case CoordinatorUnavailable():
                raise dist.DistNetworkError(str(error)) from error
            case AllhandsError():
                raise dist.DistStoreError(str(error)) from error
