"""The contract of stores: the methods of torch.distributed's c10d stores."""

from collections.abc import Sequence
from typing import Protocol

from allhands.deadlines import Timeout


class Store(Protocol):
    """Keys and values shared by all processes or threads with a store of one name space.

    Values are bytes, copied in and out; a str is encoded as UTF-8. Every method may be called from
    any thread, and a write is atomic: no reader sees half of a value. Timeouts are seconds (float)
    or a timedelta.

    Every method may raise:
        ValueError: an empty key; nothing was changed.
        StoreTimeout: a wait passed its timeout; nothing was changed. The text contains "timeout"
            and names the missing keys.
        CoordinatorUnavailable: the network or the coordinator failed (stores over a network only);
            a write may or may not have happened.
    """

    @property
    def timeout(self) -> float:
        """Timeout of `get`, `multi_get`, `wait` and `queue_pop`, in seconds."""

    def set_timeout(self, timeout: Timeout) -> None:
        """Set the timeout of later waits for keys; waits under way keep theirs."""

    def set(self, key: str, value: bytes | str) -> None:
        """Set the key to the value, and wake callers waiting for the key."""

    def get(self, key: str) -> bytes:
        """Return the key's value, after a wait for the key while absent."""

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        """Wait until all keys exist at the same time, up to `timeout`, else the store's."""

    def add(self, key: str, amount: int) -> int:
        """Add to the key's decimal number, 0 if absent, and return the sum.

        Raises:
            Refused: the value is no decimal number, or the sum leaves the range of 64 bits; the
                value is unchanged.
        """

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Set the key if equal to `expected`, or absent with `expected` empty.

        Returns the key's value afterwards; `expected` if the key is absent even then.
        """

    def append(self, key: str, value: bytes | str) -> None:
        """Append to the key's value, empty if absent."""

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait until all keys exist, and return the values in the order of `keys`."""

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        """Set each key to the value at the same index, all in one step.

        Raises:
            ValueError: `keys` and `values` differ in length; nothing was set.
        """

    def delete_key(self, key: str) -> bool:
        """Delete the key; return whether the key existed."""

    def num_keys(self) -> int:
        """Return the number of keys."""

    def list_keys(self, prefix: str = "") -> list[str]:
        """Return the keys with a `prefix`, sorted."""

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys exist now."""

    def queue_push(self, key: str, value: bytes | str) -> None:
        """Append to the queue named `key`; queues and keys have separate name spaces."""

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Remove and return the queue's first value; each value has exactly one receiver.

        With `block`, an empty queue is waited on up to the store's timeout.

        Raises:
            NotFound: the queue is empty, without `block`.
            StoreTimeout: no value was pushed in time, with `block`.
        """

    def queue_len(self, key: str) -> int:
        """Return the number of values in the queue."""

    def has_extended_api(self) -> bool:
        """Return True: `append`, `multi_get`, `multi_set` and queues exist."""

    def clone(self) -> "Store":
        """Return a store of the same keys, with a timeout independent of this store's."""
