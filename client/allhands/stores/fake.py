"""The store of a fake world's only rank, where absent keys read as empty values."""

from collections.abc import Sequence

from allhands.deadlines import Timeout, to_seconds
from allhands.errors import NotFound
from allhands.stores.hash import HashStore


class FakeStore(HashStore):
    """A `HashStore` without waiting: absent keys read as empty values."""

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        if timeout is not None:
            to_seconds(timeout)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        with self._contents.changed:
            return [self._contents.values.get(key, b"") for key in keys]

    def check(self, keys: Sequence[str]) -> bool:
        return True

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        try:
            return super().queue_pop(key, block=False)
        except NotFound:
            if block:
                return b""
            raise

    def clone(self) -> "FakeStore":
        other = FakeStore(self.timeout)
        other._contents = self._contents
        return other
