"""Keys in their order, for ranges: made by the first range, and kept up from then on."""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable

from allhands_server.machine.store.key_range import KeyRange

_INSERTED_ONE_BY_ONE = 32
"""More new keys than these are sorted in at once."""


class KeyIndex:
    """The keys of a table, sorted when a range is asked for."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._sorted = sorted(keys)
        self._added: set[str] = set()
        """New keys that are not in `_sorted` yet."""

    def add(self, key: str) -> None:
        """Add a key that is not there."""
        self._added.add(key)

    def remove(self, key: str) -> None:
        """Remove a key that is there."""
        if key in self._added:
            self._added.remove(key)
        else:
            del self._sorted[bisect_left(self._sorted, key)]

    def remove_all(self, keys: Collection[str]) -> None:
        """Remove keys that are there."""
        if len(keys) <= _INSERTED_ONE_BY_ONE:
            for key in keys:
                self.remove(key)
            return
        removed = set(keys)
        self._added -= removed
        self._sorted = [key for key in self._sorted if key not in removed]

    def count(self, wanted: KeyRange) -> int:
        """Return the number of keys in a range."""
        begin, end = self._find(wanted)
        return end - begin

    def list(self, wanted: KeyRange) -> list[str]:
        """Return the keys in a range, sorted."""
        begin, end = self._find(wanted)
        return self._sorted[begin:end]

    def _find(self, wanted: KeyRange) -> tuple[int, int]:
        self._sort_in()
        begin = bisect_left(self._sorted, wanted.first)
        if wanted.end is None:
            return begin, len(self._sorted)
        return begin, bisect_left(self._sorted, wanted.end, begin)

    def _sort_in(self) -> None:
        if not self._added:
            return
        if len(self._added) > _INSERTED_ONE_BY_ONE:
            self._sorted += self._added
            self._sorted.sort()
        else:
            for key in self._added:
                insort(self._sorted, key)
        self._added.clear()
