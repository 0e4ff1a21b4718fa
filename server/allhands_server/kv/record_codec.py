"""Conversion of requests and replies with records of keys; see coordinator.proto."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any

from google.protobuf.message import Message

from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_server.machine.changes import KeyPut
from allhands_server.machine.refusals import Refused, Status
from allhands_server.machine.store.key_results import (
    DeleteRangeResult,
    OperationResult,
    PutResult,
    RangeResult,
)
from allhands_server.machine.store.leases import LeaseGrantResult, LeaseRevokeResult, LeaseStatus
from allhands_server.machine.store.records import DeleteRange, Operation, Put, Range
from allhands_server.machine.store.transactions import Compare, Txn, TxnResult
from allhands_server.machine.store.watches import WatchResult
from allhands_server.machine.values import BarrierResult, BarrierView

_SMALL = 16
_RECORD = 64


# ---------------------------------------------------------------- requests


def read_txn(message: wire.TxnRequest) -> Txn:
    """Return the request of a message.

    Raises:
        Refused: an operation of the transaction is empty.
    """
    return Txn(
        message.job,
        tuple(
            Compare(one.key, one.target, one.relation, one.value, one.number)
            for one in message.compares
        ),
        tuple(_read_operation(message.job, one) for one in message.success),
        tuple(_read_operation(message.job, one) for one in message.failure),
    )


def _read_operation(job: str, message: wire.Operation) -> Operation:
    field = message.WhichOneof("operation")
    if field is None:
        text = "an operation of the transaction is none that this coordinator knows"
        raise Refused(Status.INVALID_ARGUMENT, text)
    make, read_rest = _OPERATIONS[field]
    operation: Operation = make(job, *read_rest(getattr(message, field)))
    return operation


def _make_reader(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    names = [field.name for field in fields(kind) if field.name != "job"]
    read: Callable[[Any], tuple[Any, ...]] = attrgetter(*names)
    return read


_OPERATIONS: Mapping[str, tuple[Callable[..., Operation], Callable[[Any], tuple[Any, ...]]]] = {
    "put": (Put, _make_reader(Put)),
    "range": (Range, _make_reader(Range)),
    "delete_range": (DeleteRange, _make_reader(DeleteRange)),
}


# ---------------------------------------------------------------- replies, with their sizes


def _fill_record(record: wire.KeyRecord, put: KeyPut, keys_only: bool = False) -> int:
    record.key = put.key
    if not keys_only:
        record.value = put.value
    record.create_revision = put.created
    record.mod_revision = put.revision
    record.version = put.version
    record.lease = put.lease
    record.member = put.member
    return _RECORD + len(put.key) + len(record.value)


def _fill_put(reply: wire.PutReply, result: PutResult) -> int:
    reply.revision = result.revision
    if result.previous is None:
        return _SMALL
    return _SMALL + _fill_record(reply.previous, result.previous)


def _fill_range(reply: wire.RangeReply, result: RangeResult) -> int:
    reply.revision = result.revision
    reply.count = result.count
    reply.has_more = result.has_more
    reply.oldest = result.oldest
    add, keys_only = reply.records.add, result.keys_only
    return _SMALL + sum(_fill_record(add(), one, keys_only) for one in result.records)


def _fill_delete_range(reply: wire.DeleteRangeReply, result: DeleteRangeResult) -> int:
    reply.revision = result.revision
    reply.deleted = result.deleted
    return _SMALL + sum(_fill_record(reply.previous.add(), one) for one in result.previous)


def _fill_txn(reply: wire.TxnReply, result: TxnResult) -> int:
    reply.revision = result.revision
    reply.succeeded = result.succeeded
    return _SMALL + sum(_fill_operation(reply.replies.add(), one) for one in result.results)


def _fill_operation(reply: wire.OperationReply, result: OperationResult) -> int:
    match result:
        case PutResult():
            return _fill_put(reply.put, result)
        case RangeResult():
            return _fill_range(reply.range, result)
        case DeleteRangeResult():
            return _fill_delete_range(reply.delete_range, result)


def _fill_watch(reply: wire.WatchReply, result: WatchResult) -> int:
    reply.revision = result.revision
    reply.next_revision = result.next_revision
    reply.next_skip = result.next_skip
    reply.oldest = result.oldest
    nbytes = _SMALL
    for event in result.events:
        written = reply.events.add()
        if isinstance(event.change, KeyPut):
            nbytes += _fill_record(written.record, event.change)
        else:
            written.is_deletion = True
            written.record.key = event.change.key
            written.record.mod_revision = event.change.revision
            nbytes += _RECORD + len(event.change.key)
        if event.previous is not None:
            nbytes += _fill_record(written.previous, event.previous)
    return nbytes


def _fill_lease_grant(reply: wire.LeaseGrantReply, result: LeaseGrantResult) -> int:
    reply.lease = result.lease
    reply.ttl = result.ttl
    return _SMALL


def _fill_lease_revoke(reply: wire.LeaseRevokeReply, result: LeaseRevokeResult) -> int:
    reply.revision = result.revision
    reply.deleted = result.deleted
    return _SMALL


def _fill_time_to_live(reply: wire.LeaseTimeToLiveReply, result: LeaseStatus) -> int:
    reply.granted = result.granted
    reply.remaining = result.remaining
    reply.keys.extend(result.keys)
    return _SMALL + sum(_SMALL + len(key) for key in result.keys)


def _fill_lease_list(reply: wire.LeaseListReply, leases: tuple[int, ...]) -> int:
    reply.leases.extend(leases)
    return _SMALL + 10 * len(leases)


def _fill_barrier(reply: wire.BarrierReply, result: BarrierResult | int) -> int:
    if isinstance(result, int):  # for a client that takes no more
        reply.generation = result
        return _SMALL
    reply.generation = result.generation
    reply.arrived.extend(result.arrived)
    if not result.generation:
        reply.cancelled_by = result.cancelled_by
        reply.reason = result.reason
    return _SMALL + len(result.reason) + _count_names(result.arrived)


def _fill_barriers(reply: wire.ListBarriersReply, found: tuple[BarrierView, ...]) -> int:
    nbytes = _SMALL
    for one in found:
        reply.barriers.add(
            name=one.name, size=one.size, participants=one.participants, arrived=one.arrived
        )
        nbytes += _RECORD + _count_names(one.participants) + _count_names(one.arrived)
    return nbytes


def _count_names(names: tuple[str, ...]) -> int:
    return sum(_SMALL + len(name) for name in names)


RECORD_FILLS: Mapping[type[Message], Callable[[Any, Any], int]] = {
    wire.PutReply: _fill_put,
    wire.RangeReply: _fill_range,
    wire.DeleteRangeReply: _fill_delete_range,
    wire.TxnReply: _fill_txn,
    wire.WatchReply: _fill_watch,
    wire.LeaseGrantReply: _fill_lease_grant,
    wire.LeaseRevokeReply: _fill_lease_revoke,
    wire.LeaseTimeToLiveReply: _fill_time_to_live,
    wire.LeaseListReply: _fill_lease_list,
    wire.BarrierReply: _fill_barrier,
    wire.ListBarriersReply: _fill_barriers,
}
"""By the reply; a function returns about how many bytes the reply takes."""
