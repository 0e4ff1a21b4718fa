"""Key-value store of a job: requests about keys, and waits for keys."""

import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from allhands_proto.kv_results import CompareSetResult
from allhands_proto.quick_dataclass import dataclass
from allhands_server.machine.changes import ChangeRecorder, HistoryCompacted, KeyDeleted, KeyPut
from allhands_server.machine.effects import Answer, Effect, Refuse
from allhands_server.machine.fast_dataclass import fast_dataclass
from allhands_server.machine.formatting import join_names, quote
from allhands_server.machine.limits import LARGEST_REPLY, check_key, check_reply
from allhands_server.machine.refusals import Refusal, Refused, Status
from allhands_server.machine.requests import Request
from allhands_server.machine.store.bindings import KeyOwners
from allhands_server.machine.store.draft import Draft
from allhands_server.machine.store.key_range import KeyRange, find_end
from allhands_server.machine.store.key_table import KeyTable, measure_growth
from allhands_server.machine.store.range_query import query_range
from allhands_server.machine.store.records import Compact, DeleteRange, Put, Range, RecordRequest
from allhands_server.machine.store.transactions import Txn, decide_txn

_INTEGER = re.compile(rb"[+-]?[0-9]{1,19}", re.ASCII)
_LEAST, _MOST = -(2**63), 2**63 - 1


@fast_dataclass
class Set(Request[int]):
    """Answered with the revision."""

    job: str
    key: str
    value: bytes


@fast_dataclass
class Get(Request[KeyPut]):
    """Answered with the record."""

    job: str
    key: str
    wait: bool = False


@fast_dataclass
class Wait(Request[None]):
    """Answered once all keys exist at the same time."""

    job: str
    keys: tuple[str, ...]


@fast_dataclass
class Add(Request[int]):
    """Answered with the sum."""

    job: str
    key: str
    amount: int


@fast_dataclass
class CompareSet(Request[CompareSetResult]):
    job: str
    key: str
    expected: bytes
    desired: bytes


@fast_dataclass
class Append(Request[int]):
    """Answered with the new length in bytes."""

    job: str
    key: str
    value: bytes


@fast_dataclass
class MultiSet(Request[int]):
    """Answered with the revision; for duplicate keys the last pair counts."""

    job: str
    pairs: tuple[tuple[str, bytes], ...]


@fast_dataclass
class MultiGet(Request[tuple[bytes, ...]]):
    job: str
    keys: tuple[str, ...]
    wait: bool = False


@fast_dataclass
class Delete(Request[bool]):
    """Answered with whether the key existed."""

    job: str
    key: str


@fast_dataclass
class List(Request[tuple[str, ...]]):
    job: str
    prefix: str = ""


@fast_dataclass
class Count(Request[int]):
    job: str


KeyRequest: TypeAlias = (
    Set
    | Get
    | Wait
    | Add
    | CompareSet
    | Append
    | MultiSet
    | MultiGet
    | Delete
    | List
    | Count
    | RecordRequest
    | Txn
)


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: Get | Wait | MultiGet
    keys: frozenset[str]
    missing: set[str]
    """Keys not put since the request; of the others some may be deleted again."""


class Keys:
    """Requests about the keys of one job, at once or after a wait."""

    def __init__(
        self, job: str, recorder: ChangeRecorder, table: KeyTable, owners: KeyOwners
    ) -> None:
        self._job = job
        self._owners = owners
        self._recorder = recorder
        self._table = table
        self._records = table.records
        self._waiting: dict[int, _Waiting] = {}
        self._waiters: dict[str, dict[int, None]] = {}  # key -> tickets, in order of asking

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    def submit(self, ticket: int, request: KeyRequest) -> list[Effect]:
        """Answer at once, or keep the request until all keys exist.

        A change also answers those who waited for it; the one who made it comes first.

        Raises:
            Refused: nothing has changed.
        """
        return _HANDLERS[type(request)](self, ticket, request)

    def cancel(self, ticket: int) -> None:
        """Drop a waiting request. Idempotent."""
        waiting = self._waiting.pop(ticket, None)
        if waiting is None:
            return
        for key in waiting.keys:
            waiters = self._waiters[key]
            del waiters[ticket]
            if not waiters:
                del self._waiters[key]

    def expire(self, ticket: int, now: float) -> Effect:
        """Refuse a waiting request past the due time, naming the missing keys."""
        waiting = self._waiting[ticket]
        missing = sorted(self._find_missing(waiting))
        of = f" ({len(missing)} of {len(waiting.keys)} keys)" * (len(waiting.keys) > 1)
        text = f"nobody has set {join_names(missing)} of job {self._job}{of}"
        self.cancel(ticket)
        return Refuse(ticket, Refusal(Status.DEADLINE_EXCEEDED, text))

    def answer_present(self) -> list[Effect]:
        """Answer waiting requests whose keys are all there, after changes were taken back."""
        effects: list[Effect] = []
        for ticket, waiting in list(self._waiting.items()):
            if not self._find_missing(waiting):
                self.cancel(ticket)
                effects.append(self._answer_found(ticket, waiting.request))
        return effects

    # ------------------------------------------------------------ changes

    def _handle_set(self, ticket: int, request: Set) -> list[Effect]:
        key, value = request.key, request.value
        check_key(key)
        self._store(key, value)
        return self._answer_change(ticket, self._table.revision, (key,))

    def _handle_multi_set(self, ticket: int, request: MultiSet) -> list[Effect]:
        for key, value in request.pairs:
            check_key(key)
            self._table.check_put(key, value, self._records.get(key))
        pairs = dict(request.pairs)
        self._check_growth(pairs)
        revision = self._table.revision + 1
        for key, value in pairs.items():
            self._recorder.commit(self._make_put(key, value, revision), self._table)
        return self._answer_change(ticket, self._table.revision, pairs)

    def _handle_add(self, ticket: int, request: Add) -> list[Effect]:
        key, amount = request.key, request.amount
        check_key(key)
        total = self._get_integer(key) + amount
        if not _LEAST <= total <= _MOST:
            raise Refused(
                Status.FAILED_PRECONDITION,
                f"adding {amount} to {quote(key)} would leave the range of 64 bits",
            )
        self._store(key, b"%d" % total, keeps_bindings=True)
        return self._answer_change(ticket, total, (key,))

    def _handle_append(self, ticket: int, request: Append) -> list[Effect]:
        key = request.key
        check_key(key)
        whole = self._get_value(key, b"") + request.value
        self._store(key, whole, keeps_bindings=True)
        return self._answer_change(ticket, len(whole), (key,))

    def _handle_compare_set(self, ticket: int, request: CompareSet) -> list[Effect]:
        key, desired = request.key, request.desired
        check_key(key)
        self._table.check_put(key, desired, self._records.get(key))
        if self._get_value(key, b"") != request.expected:
            held = self._records.get(key)
            found = CompareSetResult(False, held.value if held else None)
            return [Answer(ticket, found)]
        self._store(key, desired, keeps_bindings=True)
        return self._answer_change(ticket, CompareSetResult(True, desired), (key,))

    def _handle_delete(self, ticket: int, request: Delete) -> list[Effect]:
        check_key(request.key)
        return [Answer(ticket, self._delete(request.key))]

    def _store(self, key: str, value: bytes, keeps_bindings: bool = False) -> None:
        table = self._table
        table.check_put(key, value, self._records.get(key))
        revision = table.revision + 1
        self._recorder.commit(self._make_put(key, value, revision, keeps_bindings), table)

    def _check_growth(self, pairs: dict[str, bytes]) -> None:
        """Refuse puts for which there is no room together."""
        found = [(key, value, self._records.get(key)) for key, value in pairs.items()]
        growth = sum(itertools.starmap(measure_growth, found))
        self._table.check_growth(growth, sum(held is None for _, _, held in found))

    def _make_put(
        self, key: str, value: bytes, revision: int, keeps_bindings: bool = False
    ) -> KeyPut:
        held = self._records.get(key)
        if held is None:
            return KeyPut(self._job, key, value, revision, revision, 1)
        created, version = held.created, held.version + 1
        if keeps_bindings:
            lease, member = held.lease, held.member
            return KeyPut(self._job, key, value, revision, created, version, lease, member)
        return KeyPut(self._job, key, value, revision, created, version)

    def _delete(self, key: str) -> bool:
        if key not in self._records:
            return False
        change = KeyDeleted(self._job, key, self._table.revision + 1)
        self._recorder.commit(change, self._table)
        return True

    def _handle_operation(self, ticket: int, request: Put | DeleteRange) -> list[Effect]:
        draft = Draft(self._table, self._owners)
        result = draft.carry_out(request)
        return self._commit_draft(ticket, draft, result)

    def _handle_txn(self, ticket: int, request: Txn) -> list[Effect]:
        draft = Draft(self._table, self._owners)
        result = decide_txn(draft, request)
        return self._commit_draft(ticket, draft, result)

    def _handle_compact(self, ticket: int, request: Compact) -> list[Effect]:
        table, revision = self._table, request.revision
        if revision > table.revision:
            text = f"revision {revision:,} is still to come; now it is {table.revision:,}"
            raise Refused(Status.INVALID_ARGUMENT, text)
        if revision > table.history.floor:
            self._recorder.commit(HistoryCompacted(self._job, revision), table)
        return [Answer(ticket, table.revision)]

    def _commit_draft(self, ticket: int, draft: Draft, result: object) -> list[Effect]:
        """Make the changes of a draft, and answer."""
        for change in draft.changes:
            self._recorder.commit(change, self._table)
        put = [change.key for change in draft.changes if isinstance(change, KeyPut)]
        return self._answer_change(ticket, result, put)

    def _answer_change(self, ticket: int, reply: object, keys: Iterable[str]) -> list[Effect]:
        effects: list[Effect] = [Answer(ticket, reply)]
        if self._waiters:
            effects += self._answer_waiters(keys)
        return effects

    def _answer_waiters(self, keys: Iterable[str]) -> list[Effect]:
        """Answer the waiting requests that waited for these keys last."""
        effects: list[Effect] = []
        for key in keys:
            for waiter in list(self._waiters.get(key, ())):
                waiting = self._waiting[waiter]
                waiting.missing.discard(key)
                if waiting.missing:
                    continue
                waiting.missing.update(self._find_missing(waiting))
                if not waiting.missing:
                    self.cancel(waiter)
                    effects.append(self._answer_found(waiter, waiting.request))
        return effects

    def _find_missing(self, waiting: _Waiting) -> list[str]:
        return [key for key in waiting.keys if key not in self._records]

    # ------------------------------------------------------------ looking

    def _handle_list(self, ticket: int, request: List) -> list[Effect]:
        prefix = request.prefix
        found = tuple(self._table.list_keys(KeyRange(prefix, find_end(prefix))))
        check_reply(sum(len(key.encode()) + 4 for key in found))
        return [Answer(ticket, found)]

    def _handle_count(self, ticket: int, _: Count) -> list[Effect]:
        return [Answer(ticket, len(self._records))]

    def _handle_get(self, ticket: int, request: Get) -> list[Effect]:
        if (found := self._records.get(request.key)) is not None:
            return [Answer(ticket, found)]
        return self._get_or_wait(ticket, request, (request.key,))

    def _handle_multi(self, ticket: int, request: Wait | MultiGet) -> list[Effect]:
        return self._get_or_wait(ticket, request, request.keys)

    def _handle_range(self, ticket: int, request: Range) -> list[Effect]:
        result, _ = query_range(self._table, request, {}, LARGEST_REPLY)
        return [Answer(ticket, result)]

    def _get_or_wait(
        self, ticket: int, request: Get | Wait | MultiGet, wanted: tuple[str, ...]
    ) -> list[Effect]:
        for key in wanted:
            check_key(key)
        keys = frozenset(wanted)
        missing = {key for key in keys if key not in self._records}
        if not missing:
            return [self._answer_found(ticket, request)]
        if not isinstance(request, Wait) and not request.wait:
            raise Refused(
                Status.NOT_FOUND,
                f"job {self._job} has no key {join_names(sorted(missing))}",
            )
        self._waiting[ticket] = _Waiting(request, keys, missing)
        for key in keys:
            self._waiters.setdefault(key, {})[ticket] = None
        return []

    def _answer_found(self, ticket: int, request: Get | Wait | MultiGet) -> Effect:
        match request:
            case Get(_, key):
                return Answer(ticket, self._records[key])
            case Wait():
                return Answer(ticket, None)
            case MultiGet(_, keys):
                values = tuple(self._records[key].value for key in keys)
                try:
                    check_reply(sum(len(value) + 8 for value in values))
                except Refused as refused:
                    # Not raised: the one who set the last key has done nothing wrong.
                    return Refuse(ticket, refused.refusal)
                return Answer(ticket, values)

    def _get_value(self, key: str, default: bytes) -> bytes:
        entry = self._records.get(key)
        return default if entry is None else entry.value

    def _get_integer(self, key: str) -> int:
        held = self._get_value(key, b"0")
        if not _INTEGER.fullmatch(held) or not _LEAST <= (total := int(held)) <= _MOST:
            raise Refused(
                Status.FAILED_PRECONDITION,
                f"{quote(key)} of job {self._job} holds no integer, "
                f"but {len(held):,} bytes: {held[:20]!r}",
            )
        return total


_HANDLERS: dict[type, Callable[[Keys, int, Any], list[Effect]]] = {
    Set: Keys._handle_set,
    Get: Keys._handle_get,
    Wait: Keys._handle_multi,
    Add: Keys._handle_add,
    CompareSet: Keys._handle_compare_set,
    Append: Keys._handle_append,
    MultiSet: Keys._handle_multi_set,
    MultiGet: Keys._handle_multi,
    Delete: Keys._handle_delete,
    List: Keys._handle_list,
    Count: Keys._handle_count,
    Put: Keys._handle_operation,
    DeleteRange: Keys._handle_operation,
    Range: Keys._handle_range,
    Txn: Keys._handle_txn,
    Compact: Keys._handle_compact,
}
