"""Registry of a process's groups in one world, by name and by tag.

All ranks of a group must give it the same name without asking each other. So a name is made of
what they agree on: the group that it is a part of, its ranks, its tag, and a count of the groups
that were made of these before. Who makes groups of other ranks meanwhile changes nothing.
"""

import hashlib
import threading
from collections import Counter
from collections.abc import Sequence

from allhands.group.group import Group
from allhands_proto.quick_dataclass import dataclass

_MAX_RANK_LIST = 40
"""Characters of a list of ranks in a name; longer lists become a digest."""
_MAX_PARENT_NAME = 120
_MAX_TAG = 64


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Key that identifies a tagged group."""

    parent: str
    """Name of the group whose ranks these are."""
    ranks: tuple[int, ...]
    tag: str = ""

    @property
    def base_name(self) -> str:
        """The name without the count."""
        parent = self.parent
        if len(parent) > _MAX_PARENT_NAME:
            parent = f"{parent[: _MAX_PARENT_NAME // 2]}~{_digest(parent)}"
        stem = f"{parent}:{_format_ranks(self.ranks)}"
        return f"{stem}/{self.tag}" if self.tag else stem


class GroupRegistry:
    """Groups by tag and ranks, and by name; safe from any thread."""

    def __init__(self) -> None:
        self.creation_lock = threading.Lock()
        """Held while a group with a tag is looked for and made, so that there is only one."""
        self._lock = threading.Lock()
        self._name_counts: Counter[str] = Counter()
        self._keys: dict[Group, GroupKey] = {}

    def make_name(self, key: GroupKey) -> str:
        """Name the next group of these ranks; count it."""
        with self._lock:
            self._name_counts[key.base_name] += 1
            return f"{key.base_name}/{self._name_counts[key.base_name]}"

    def add(self, group: Group, key: GroupKey) -> None:
        with self._lock:
            self._keys[group] = key

    def remove(self, group: Group) -> None:
        """Remove a group and its tag; a no-op for an unknown group."""
        with self._lock:
            self._keys.pop(group, None)

    def find_by_key(self, key: GroupKey) -> Group | None:
        """Return the group with this tag, parent and ranks."""
        with self._lock:
            return next((one for one, its in self._keys.items() if its == key), None)

    def find(self, parent: str, tag: str, ranks: tuple[int, ...]) -> Group | None:
        """Return the group of these ranks of a parent that has this tag."""
        return self.find_by_key(GroupKey(parent, ranks, tag))

    def find_by_name(self, name: str) -> Group | None:
        with self._lock:
            return next((one for one in self._keys if one.name == name), None)

    def get_tag(self, group: Group) -> str:
        """Return a group's tag; "" for an untagged group."""
        with self._lock:
            found = self._keys.get(group)
        return "" if found is None else found.tag


def check_tag(tag: object) -> str:
    """Return a tag as text; "" for None.

    Raises:
        TypeError: no text.
        ValueError: too long, or it would garble a terminal.
    """
    if tag is None:
        return ""
    if not isinstance(tag, str):
        raise TypeError(f"tag must be a str, not {type(tag).__name__}: a timeout is timeout=...")
    if len(tag) > _MAX_TAG or not tag.isprintable():
        raise ValueError(f"a tag has {_MAX_TAG} printable characters at most: {tag[:80]!r}")
    return tag


def _format_ranks(ranks: Sequence[int]) -> str:
    """Format ranks in their order, runs as `3-7`."""
    runs: list[tuple[int, int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    text = ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
    if len(text) <= _MAX_RANK_LIST:
        return text
    return f"{len(ranks)}~{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
