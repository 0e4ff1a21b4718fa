"""Requests about records of keys, transactions, watches and leases, for both clients."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Generic, TypeAlias, TypeVar

from allhands.coordinator.kv.records import (
    DeleteResult,
    KeyEvent,
    KeyRange,
    KeyRecord,
    LeaseStatus,
    OperationResult,
    PutResult,
    TxnResult,
    WatchBatch,
    WatchPlace,
)
from allhands.coordinator.kv.transactions import (
    Condition,
    Delete,
    Get,
    Operation,
    Put,
    encode_end,
    make_operation,
    mod_revision,
)
from allhands.coordinator.kv.values import encode
from allhands.errors import Compacted, LeaseNotFound, NotFound
from allhands_proto.kv_verbs import P, Q
from allhands_proto.quick_dataclass import dataclass
from allhands_proto.v1 import coordinator_pb2 as wire

T = TypeVar("T")

_LEAST_KEY = "\0"
_LAST = 0x10FFFF
_BEFORE_SURROGATES, _BEHIND_SURROGATES = 0xD7FF, 0xE000


@dataclass(frozen=True, slots=True)
class KvRequest(Generic[Q, P, T]):
    """A request message with the meaning of its reply."""

    message: Q
    reply: type[P]
    read: Callable[[P], T]
    """Return the reply's value; may raise Compacted."""
    absent: type[NotFound] = NotFound
    """Error for the coordinator's NOT_FOUND."""


AnyKvRequest: TypeAlias = KvRequest[Any, Any, T]


@dataclass(frozen=True, slots=True)
class WatchedKeys:
    """The keys and events of a watch."""

    key: str
    end: str | None = None
    """As in `Get`."""
    prefix: bool = False
    puts: bool = True
    deletions: bool = True
    previous: bool = False


def make_put(job: str, put: Put) -> KvRequest[wire.PutRequest, wire.PutReply, PutResult]:
    can_only_miss_lease = put.lease and not (put.member or put.keeps_value or put.keeps_bindings)
    return KvRequest(
        put.make_message(job),
        wire.PutReply,
        _read_put,
        LeaseNotFound if can_only_miss_lease else NotFound,
    )


def make_get(job: str, get: Get) -> KvRequest[wire.RangeRequest, wire.RangeReply, KeyRange]:
    return KvRequest(
        get.make_message(job),
        wire.RangeReply,
        lambda reply: _read_range(reply, get.revision),
    )


def make_delete(
    job: str, delete: Delete
) -> KvRequest[wire.DeleteRangeRequest, wire.DeleteRangeReply, DeleteResult]:
    return KvRequest(delete.make_message(job), wire.DeleteRangeReply, _read_delete)


def make_txn(
    job: str,
    conditions: Iterable[Condition],
    success: Iterable[Operation],
    failure: Iterable[Operation],
) -> KvRequest[wire.TxnRequest, wire.TxnReply, TxnResult]:
    """Return the request of a transaction.

    Raises:
        TypeError: something else than a condition, as where two values were compared.
    """
    checked = list(conditions)
    for condition in checked:
        if not isinstance(condition, Condition):
            raise TypeError(f'a condition is made like `version("k") == 0`, not {condition!r}')
    message = wire.TxnRequest(
        job=job,
        compares=[condition.message for condition in checked],
        success=[make_operation(job, one) for one in success],
        failure=[make_operation(job, one) for one in failure],
    )
    return KvRequest(message, wire.TxnReply, _read_txn)


def make_compare_and_set(
    job: str, key: str, value: bytes | str, revision: int, lease: int
) -> KvRequest[wire.TxnRequest, wire.TxnReply, int | None]:
    """Return the request to set a key last changed at `revision`; 0: absent."""
    condition: Condition = mod_revision(key) == revision
    txn = make_txn(job, [condition], [Put(key, encode(value), lease)], [])
    return KvRequest(
        txn.message,
        txn.reply,
        lambda reply: reply.revision if reply.succeeded else None,
        LeaseNotFound,
    )


def make_compact(
    job: str, revision: int
) -> KvRequest[wire.CompactRequest, wire.CompactReply, None]:
    message = wire.CompactRequest(job=job, revision=revision)
    return KvRequest(message, wire.CompactReply, lambda reply: None)


def make_watch(
    job: str, keys: WatchedKeys, place: WatchPlace, *, wait: bool
) -> KvRequest[wire.WatchRequest, wire.WatchReply, WatchBatch]:
    """Return the request for the next events from a place on; revision 0: from now on."""
    message = wire.WatchRequest(
        job=job,
        key=keys.key,
        range_end=encode_end(keys.end),
        prefix=keys.prefix,
        revision=place.revision,
        skip=place.skip,
        wait=wait,
        previous=keys.previous,
        without_puts=not keys.puts,
        without_deletions=not keys.deletions,
    )
    return KvRequest(message, wire.WatchReply, lambda reply: _read_watch(reply, place.revision))


def make_lease_grant(
    job: str, ttl: float, lease: int
) -> KvRequest[wire.LeaseGrantRequest, wire.LeaseGrantReply, int]:
    message = wire.LeaseGrantRequest(job=job, ttl=ttl, lease=lease)
    return KvRequest(message, wire.LeaseGrantReply, lambda reply: reply.lease)


def make_lease_revoke(
    job: str, lease: int
) -> KvRequest[wire.LeaseRevokeRequest, wire.LeaseRevokeReply, int]:
    message = wire.LeaseRevokeRequest(job=job, lease=lease)
    return KvRequest(message, wire.LeaseRevokeReply, lambda reply: reply.deleted, LeaseNotFound)


def make_keep_alive(
    job: str, lease: int
) -> KvRequest[wire.LeaseKeepAliveRequest, wire.LeaseKeepAliveReply, float]:
    message = wire.LeaseKeepAliveRequest(job=job, lease=lease)
    return KvRequest(message, wire.LeaseKeepAliveReply, lambda reply: reply.ttl, LeaseNotFound)


def make_time_to_live(
    job: str, lease: int
) -> KvRequest[wire.LeaseTimeToLiveRequest, wire.LeaseTimeToLiveReply, LeaseStatus]:
    message = wire.LeaseTimeToLiveRequest(job=job, lease=lease, with_keys=True)
    return KvRequest(
        message,
        wire.LeaseTimeToLiveReply,
        lambda reply: LeaseStatus(reply.granted, reply.remaining, tuple(reply.keys)),
        LeaseNotFound,
    )


def make_lease_list(
    job: str,
) -> KvRequest[wire.LeaseListRequest, wire.LeaseListReply, tuple[int, ...]]:
    message = wire.LeaseListRequest(job=job)
    return KvRequest(message, wire.LeaseListReply, lambda reply: tuple(reply.leases))


def find_next_page(get: Get, page: KeyRange) -> Get | None:
    """Return the operation for the page behind, at the same revision; None: there is none.

    Only keys sorted by the key have pages.
    """
    if not (page.has_more and page.records) or get.sort_by != "key":
        return None
    first, end = (get.key, find_end(get.key)) if get.prefix else (get.key, get.end)
    last = page.records[-1].key
    if get.descending:
        first, end = first or _LEAST_KEY, last
    else:
        first = f"{last}\0"
    return replace(get, key=first, end=end, prefix=False, revision=page.revision)


def find_end(prefix: str) -> str:
    """Return the first key behind all with a prefix; empty: there is none."""
    for length in range(len(prefix), 0, -1):
        last = ord(prefix[length - 1])
        if last < _LAST:
            following = _BEHIND_SURROGATES if last == _BEFORE_SURROGATES else last + 1
            return prefix[: length - 1] + chr(following)
    return ""


# ---------------------------------------------------------------- replies


def _read_record(message: wire.KeyRecord) -> KeyRecord:
    return KeyRecord(
        message.key,
        message.value,
        message.create_revision,
        message.mod_revision,
        message.version,
        message.lease,
        message.member,
    )


def _read_previous(message: Any) -> KeyRecord | None:
    return _read_record(message.previous) if message.HasField("previous") else None


def _read_put(reply: wire.PutReply) -> PutResult:
    return PutResult(reply.revision, _read_previous(reply))


def _read_range(reply: wire.RangeReply, revision: int = 0) -> KeyRange:
    if reply.oldest:
        raise Compacted(
            f"the keys at revision {revision:,} are not known any more: "
            f"{reply.oldest:,} is the oldest revision that can be looked at",
            oldest=reply.oldest,
        )
    records = tuple(map(_read_record, reply.records))
    return KeyRange(revision or reply.revision, records, reply.count, reply.has_more)


def _read_delete(reply: wire.DeleteRangeReply) -> DeleteResult:
    return DeleteResult(reply.revision, reply.deleted, tuple(map(_read_record, reply.previous)))


def _read_txn(reply: wire.TxnReply) -> TxnResult:
    return TxnResult(reply.succeeded, reply.revision, tuple(map(_read_operation, reply.replies)))


def _read_operation(reply: wire.OperationReply) -> OperationResult:
    match reply.WhichOneof("reply"):
        case "put":
            return _read_put(reply.put)
        case "range":
            return _read_range(reply.range)
        case _:
            return _read_delete(reply.delete_range)


def _read_watch(reply: wire.WatchReply, revision: int) -> WatchBatch:
    if reply.oldest:
        raise Compacted(
            f"the events from revision {revision:,} on are not all known any more: "
            f"{reply.oldest:,} is the oldest revision to watch from; look at the keys first",
            oldest=reply.oldest,
        )
    events = tuple(
        KeyEvent(_read_record(event.record), event.is_deletion, _read_previous(event))
        for event in reply.events
    )
    return WatchBatch(events, WatchPlace(reply.next_revision, reply.next_skip))
