"""Keys bound to leases and members, with the end of which they are deleted."""

from collections.abc import Collection
from typing import Protocol, TypeAlias

from allhands_server.machine.changes import KeyPut

Owner: TypeAlias = int | str
"""A lease's number, or a member's id."""


class KeyOwners(Protocol):
    """The leases and members that keys can be bound to."""

    def check_lease(self, lease: int) -> None:
        """Refuse an unknown lease."""

    def check_member(self, member_id: str) -> None:
        """Refuse a member that is not present."""


class Bindings:
    """The keys of each owner."""

    def __init__(self) -> None:
        self._keys: dict[Owner, set[str]] = {}

    def list_members(self) -> list[str]:
        """Return the ids of all members with keys."""
        return sorted(owner for owner in self._keys if isinstance(owner, str))

    def list_keys(self, owner: Owner) -> list[str]:
        """Return the keys of an owner, sorted."""
        return sorted(self._keys.get(owner, ()))

    def count_keys(self, owner: Owner) -> int:
        """Return the number of an owner's keys."""
        return len(self._keys.get(owner, ()))

    def add(self, record: KeyPut) -> None:
        """Note the owners of a record."""
        for owner in _list_owners(record):
            self._keys.setdefault(owner, set()).add(record.key)

    def remove(self, record: KeyPut) -> None:
        """Forget the owners of a record."""
        for owner in _list_owners(record):
            keys = self._keys[owner]
            keys.remove(record.key)
            if not keys:
                del self._keys[owner]


def _list_owners(record: KeyPut) -> Collection[Owner]:
    owners: list[Owner] = []
    if record.lease:
        owners.append(record.lease)
    if record.member:
        owners.append(record.member)
    return owners
