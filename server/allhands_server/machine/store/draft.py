"""Decision on the operations of one request: all are decided before the first change is made."""

from allhands_server.machine.changes import KeyDeleted, KeyPut, RangeDeleted
from allhands_server.machine.formatting import quote
from allhands_server.machine.limits import (
    DELETED_KEYS,
    LARGEST_REPLY,
    check_key,
    check_reply,
)
from allhands_server.machine.refusals import Refused, Status
from allhands_server.machine.store.bindings import KeyOwners, Owner
from allhands_server.machine.store.key_range import KeyRange, make_range
from allhands_server.machine.store.key_results import (
    DeleteRangeResult,
    OperationResult,
    PutResult,
    RangeResult,
)
from allhands_server.machine.store.key_table import KeyTable, measure_growth
from allhands_server.machine.store.range_query import count_nbytes, query_range
from allhands_server.machine.store.records import DeleteRange, Operation, Put, Range


class Draft:
    """Operations on a table, of which each sees those before, and the table none."""

    def __init__(self, table: KeyTable, owners: KeyOwners) -> None:
        self._table = table
        self._owners = owners
        self._revision = table.revision + 1
        self._altered: dict[str, KeyPut | None] = {}
        """Records of the keys that are not as in the table; None: deleted."""
        self._deleted_ranges: list[KeyRange] = []
        self._put: set[str] = set()
        self._growth = self._new_keys = 0
        """Bytes and keys that the puts add; deletions of the same request make no room."""
        self._reply_nbytes = 0
        self.changes: list[KeyPut | KeyDeleted | RangeDeleted] = []

    def carry_out(self, operation: Operation) -> OperationResult:
        """Decide one operation.

        Raises:
            Refused: it cannot be carried out; nothing has changed.
        """
        match operation:
            case Put():
                return self._decide_put(operation)
            case Range():
                return self._decide_range(operation)
            case DeleteRange():
                return self._decide_deletion(operation)

    @property
    def revision(self) -> int:
        """Revision of the keys after the operations so far."""
        return self._revision if self.changes else self._table.revision

    def find(self, key: str) -> KeyPut | None:
        """Return the record of a key."""
        if key in self._altered:
            return self._altered[key]
        return self._table.records.get(key)

    def _decide_put(self, put: Put) -> PutResult:
        key = put.key
        check_key(key)
        if key in self._put:
            raise Refused(Status.INVALID_ARGUMENT, f"two puts of key {quote(key)} in one request")
        if any(key in deleted for deleted in self._deleted_ranges):
            raise _refuse_mixed(key)
        held = self.find(key)
        if held is None and (put.keeps_value or put.keeps_bindings):
            text = f"job {put.job} has no key {quote(key)}, so that nothing can be kept of it"
            raise Refused(Status.NOT_FOUND, text)
        value, lease, member = put.value, put.lease, put.member
        created, version = self._revision, 1
        if held is not None:
            created, version = held.created, held.version + 1
            value = held.value if put.keeps_value else value
            if put.keeps_bindings:
                lease, member = held.lease, held.member
        self._check_room(key, value)
        self._check_owners(held, lease, member)
        change = KeyPut(put.job, key, value, self._revision, created, version, lease, member)
        self._put.add(key)
        self._altered[key] = change
        self.changes.append(change)
        previous = held if put.previous else None
        if previous is not None:
            self._count_reply(count_nbytes(previous))
        return PutResult(self._revision, previous)

    def _check_room(self, key: str, value: bytes) -> None:
        table = self._table
        held = table.records.get(key)
        table.check_put(key, value, held)
        self._growth += measure_growth(key, value, held)
        self._new_keys += held is None
        table.check_growth(self._growth, self._new_keys)

    def _check_owners(self, held: KeyPut | None, lease: int, member: str) -> None:
        if lease and (held is None or held.lease != lease):
            self._owners.check_lease(lease)
            self._check_bound(lease, f"lease {lease}")
        if member and (held is None or held.member != member):
            self._owners.check_member(member)
            self._check_bound(member, f"member {quote(member)}")

    def _check_bound(self, owner: Owner, name: str) -> None:
        most = self._table.limits.lease_keys
        if most and (count := self._table.bindings.count_keys(owner)) >= most:
            text = (
                f"{name} has {count:,} keys, the most that one has: use another one, or raise it "
                "(`allhands serve --limit lease-keys=NUMBER`)"
            )
            raise Refused(Status.RESOURCE_EXHAUSTED, text)

    def _decide_range(self, wanted: Range) -> RangeResult:
        room = LARGEST_REPLY - self._reply_nbytes
        result, nbytes = query_range(self._table, wanted, self._altered, room)
        if result.oldest:
            text = f"revision {wanted.revision:,} is compacted; {result.oldest:,} is the oldest"
            raise Refused(Status.FAILED_PRECONDITION, text)
        self._count_reply(nbytes)
        return result

    def _decide_deletion(self, deletion: DeleteRange) -> DeleteRangeResult:
        wanted = make_range(deletion.key, deletion.range_end, deletion.prefix)
        if (key := next((key for key in self._put if key in wanted), None)) is not None:
            raise _refuse_mixed(key)
        self._deleted_ranges.append(wanted)
        keys = [key for key in self._table.list_keys(wanted) if self.find(key) is not None]
        if len(keys) > DELETED_KEYS:
            raise Refused(
                Status.RESOURCE_EXHAUSTED,
                f"the range has {len(keys):,} keys; {DELETED_KEYS:,} is the most that one "
                "request deletes: delete it in parts",
            )
        previous = tuple(self._table.records[key] for key in keys) if deletion.previous else ()
        self._count_reply(sum(map(count_nbytes, previous)))
        self._altered.update(dict.fromkeys(keys))
        if len(keys) == 1:
            self.changes.append(KeyDeleted(deletion.job, keys[0], self._revision))
        elif keys:
            first, end = wanted.first, wanted.end or ""
            self.changes.append(RangeDeleted(deletion.job, first, end, self._revision))
        return DeleteRangeResult(self.revision, len(keys), previous)

    def _count_reply(self, nbytes: int) -> None:
        self._reply_nbytes += nbytes
        check_reply(self._reply_nbytes)


def _refuse_mixed(key: str) -> Refused:
    text = f"key {quote(key)} would be put and deleted by one request"
    return Refused(Status.INVALID_ARGUMENT, text)
