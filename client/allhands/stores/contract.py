"""The contract of stores: the methods of torch.distributed's c10d stores."""

from collections.abc import Sequence
from typing import Protocol, Self

from allhands.deadlines import Timeout


class Store(Protocol):
    """Keys and values shared by all processes or threads with a store of one name space.

    Values are bytes; a str given as a value is encoded as UTF-8. Every method may be called from
    any thread, and writes are one step each: nobody sees half of one. A wait that passes its
    timeout raises StoreTimeout, whose text contains "timeout" and names the missing keys, and
    changes nothing. An empty key is a ValueError. Stores over a network also raise
    CoordinatorUnavailable.
    """

    @property
    def timeout(self) -> float:
        """Seconds that `get`, `multi_get` and `wait` wait for keys."""

    def set_timeout(self, timeout: Timeout) -> None:
        """Set how long later calls wait for keys."""

    def set(self, key: str, value: bytes | str) -> None:
        """Set the key, and wake its waiters."""

    def get(self, key: str) -> bytes:
        """Wait until the key exists, and return its value."""

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        """Wait until all the keys exist at once, up to `timeout`, else the store's."""

    def add(self, key: str, amount: int) -> int:
        """Add to the key's decimal number, 0 if absent, and return the sum.

        Raises:
            Refused: the key holds something else, or the sum leaves the range of 64 bits.
        """

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Set the key if equal to `expected`, or absent with `expected` empty.

        Returns what the key holds afterwards; `expected` if it does not exist even then.
        """

    def append(self, key: str, value: bytes | str) -> None:
        """Append to the key's value, empty if absent."""

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait until all keys exist, and return the values in the order of `keys`."""

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        """Set each key to the value at its place.

        Raises:
            ValueError: there are more of one than of the other.
        """

    def delete_key(self, key: str) -> bool:
        """Delete the key; return whether the key existed."""

    def num_keys(self) -> int:
        """Return how many keys there are."""

    def list_keys(self, prefix: str = "") -> list[str]:
        """Return the keys with a `prefix`, sorted."""

    def check(self, keys: Sequence[str]) -> bool:
        """Say whether all the keys exist now."""

    def queue_push(self, key: str, value: bytes | str) -> None:
        """Append to the queue of that name; a key of the same name is something else."""

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Remove and return the queue's first value; each value has exactly one receiver.

        With `block` it waits for one, no longer than the store's timeout.

        Raises:
            NotFound: it is empty, without `block`.
        """

    def queue_len(self, key: str) -> int:
        """Return how many values the queue holds."""

    def has_extended_api(self) -> bool:
        """Say whether there are `append`, `multi_get`, `multi_set` and queues; true."""

    def clone(self) -> Self:
        """Return a store of the same keys with a separate timeout."""
