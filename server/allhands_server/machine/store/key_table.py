"""The keys of a job with their records: the durable state below all requests about keys."""

from collections.abc import Callable, Collection, Iterator
from typing import TypeAlias

from allhands_server.machine.changes import (
    Change,
    HistoryCompacted,
    KeyDeleted,
    KeyPut,
    MemberKeysDeleted,
    RangeDeleted,
    Undo,
)
from allhands_server.machine.limits import check_value
from allhands_server.machine.memory_use import RECORD_NBYTES, JobMemory, refuse_count
from allhands_server.machine.store.bindings import Bindings, Owner
from allhands_server.machine.store.history import History, HistoryBudget
from allhands_server.machine.store.key_index import KeyIndex
from allhands_server.machine.store.key_range import KeyRange

TableChange: TypeAlias = KeyPut | KeyDeleted | RangeDeleted | MemberKeysDeleted | HistoryCompacted


class KeyTable:
    """Records of the keys of one job, each the last put of its key.

    `revision` counts every change, even across `clear`; changes of one request share a revision.
    """

    def __init__(
        self, job: str, histories: HistoryBudget, memory: JobMemory, revision: int = 0
    ) -> None:
        self.job = job
        self._histories = histories
        self._memory = memory
        self.limits = memory.limits
        self._nbytes = 0
        """Of the records."""
        self.records: dict[str, KeyPut] = {}
        self.revision = revision
        self.history = History(revision, histories)
        self.bindings = Bindings()
        self.on_event: Callable[[int], None] | None = None
        """Called with the revision of each new event."""
        self._index: KeyIndex | None = None

    # ------------------------------------------------------------ durable state

    def apply(self, change: TableChange) -> None:
        """Make a change; waiting requests are not answered by it."""
        if isinstance(change, KeyPut):
            key, revision = change.key, change.revision
            held = self.records.get(key)
            if held is None and self._index is not None:
                self._index.add(key)
            self.records[key] = change
            self._count(measure_growth(key, change.value, held))
            if held is not None and (held.lease or held.member):
                self.bindings.remove(held)
            if change.lease or change.member:
                self.bindings.add(change)
            if revision > self.history.floor:  # else it is of a snapshot
                self.revision = revision
                self.history.append(change, held)
                if self.on_event is not None:
                    self.on_event(revision)
        elif isinstance(change, HistoryCompacted):
            self.history.compact(change.revision)
        else:
            self._delete(self._list_deleted(change), change.revision)

    def check_put(self, key: str, value: bytes, held: KeyPut | None) -> None:
        """Refuse a put for which there is no room; nothing is counted.

        Raises:
            Refused: the value is too large, or a limit of the job or of all jobs would be exceeded.
        """
        nbytes = len(value)
        if nbytes > self.limits.value_size:
            check_value(key, nbytes, self.limits.value_size)
        if held is None:
            self.check_growth(nbytes + len(key) + RECORD_NBYTES, 1)
        elif nbytes > len(held.value):
            self._memory.check(nbytes - len(held.value))

    def check_growth(self, growth: int, keys: int) -> None:
        """Refuse more bytes and keys than there is room for; see `check_put`."""
        most = self.limits.job_keys
        if most and keys > 0 and len(self.records) + keys > most:
            remedy = "delete some, or use fewer and larger ones"
            raise refuse_count(self.job, len(self.records), "keys", "job-keys", remedy)
        self._memory.check(growth)

    def _count(self, nbytes: int) -> None:
        self._nbytes += nbytes
        self._memory.add(nbytes)

    def make_undo(self, change: TableChange) -> Undo:
        """Return the reverse of a change about to be applied; revisions are not given again."""
        if isinstance(change, KeyPut):
            put, held = change, self.records.get(change.key)
            return lambda: self._undo_put(put, held)
        if isinstance(change, HistoryCompacted):
            return lambda: None
        return self._make_undo_deletion(self._list_deleted(change), change.revision)

    def delete_bound(self, owner: Owner, revision: int) -> None:
        """Delete the keys of a lease or a member, as part of a change of theirs."""
        self._delete(self.bindings.list_keys(owner), revision)

    def make_undo_bound(self, owner: Owner, revision: int) -> Undo:
        """Return the reverse of `delete_bound` about to be called."""
        return self._make_undo_deletion(self.bindings.list_keys(owner), revision)

    def clear(self, revision: int) -> None:
        """Drop all keys, and the history."""
        self.records.clear()
        self._count(-self._nbytes)
        self._index = None
        self.revision = revision
        self.history.close()
        self.history = History(revision, self._histories)
        self.bindings = Bindings()
        if self.on_event is not None:
            self.on_event(revision)

    def list_changes(self) -> Iterator[Change]:
        """Return changes that make the records of now; later changes do not matter.

        Behind a clear with the revision of now: they make no history.
        """
        return iter([*self.records.values()])

    def _list_deleted(
        self, change: KeyDeleted | RangeDeleted | MemberKeysDeleted
    ) -> Collection[str]:
        if isinstance(change, KeyDeleted):
            return (change.key,)
        if isinstance(change, MemberKeysDeleted):
            return self.bindings.list_keys(change.member)
        return self.list_keys(KeyRange(change.key, change.range_end or None))

    def _delete(self, keys: Collection[str], revision: int) -> None:
        """Delete keys that there are, at a revision that is not given yet if there are any."""
        self.revision = max(self.revision, revision)
        if self._index is not None:
            self._index.remove_all(keys)
        for key in keys:
            held = self.records.pop(key)
            self._count(-measure_growth(key, held.value, None))
            self.bindings.remove(held)
            self.history.append(KeyDeleted(self.job, key, revision), held)
        if keys and self.on_event is not None:
            self.on_event(revision)

    def _make_undo_deletion(self, keys: Collection[str], revision: int) -> Undo:
        deleted = [self.records[key] for key in keys]
        return lambda: self._undo_deletion(deleted, revision)

    def _undo_put(self, put: KeyPut, held: KeyPut | None) -> None:
        self.history.take_back(put.revision)
        self.bindings.remove(put)
        self._count(-measure_growth(put.key, put.value, held))
        if held is not None:
            self.bindings.add(held)
            self.records[put.key] = held
            return
        del self.records[put.key]
        if self._index is not None:
            self._index.remove(put.key)

    def _undo_deletion(self, deleted: Collection[KeyPut], revision: int) -> None:
        if deleted:
            self.history.take_back(revision)
        for record in deleted:
            self.records[record.key] = record
            self._count(measure_growth(record.key, record.value, None))
            self.bindings.add(record)
            if self._index is not None:
                self._index.add(record.key)

    # ------------------------------------------------------------ looking

    def list_keys(self, wanted: KeyRange) -> list[str]:
        """Return the keys in a range, sorted."""
        if wanted.is_one_key:
            return [wanted.first] if wanted.first in self.records else []
        return self._open_index().list(wanted)

    def count_keys(self, wanted: KeyRange) -> int:
        """Return the number of keys in a range."""
        if wanted.is_one_key:
            return int(wanted.first in self.records)
        return self._open_index().count(wanted)

    def _open_index(self) -> KeyIndex:
        if self._index is None:
            self._index = KeyIndex(self.records)
        return self._index


def measure_growth(key: str, value: bytes, held: KeyPut | None) -> int:
    """Return the bytes by which a put in the place of a record makes the records grow."""
    if held is None:
        return RECORD_NBYTES + len(key) + len(value)
    return len(value) - len(held.value)
