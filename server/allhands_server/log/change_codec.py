"""Changes as the bytes in frames and in snapshots, see log.proto.

A new kind of change, or a new field of one, needs a new `frame.VERSION`: an older daemon must
refuse the log, not pass over what it does not know.
"""

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError

from allhands_proto.v1 import log_pb2 as wire
from allhands_server.log.errors import LogDamaged, LogTooNew
from allhands_server.machine.changes import (
    BarrierOpened,
    Change,
    HistoryCompacted,
    JobCleared,
    JobForgotten,
    KeyDeleted,
    KeyPut,
    LeaseEnded,
    LeaseGranted,
    MemberKeysDeleted,
    QueuePushed,
    QueueTaken,
    RangeDeleted,
    RevisionReached,
    TokenCreated,
    TokenRevoked,
    TokenUsed,
    WorldOpened,
)
from allhands_server.machine.leadership import Term

LogEntry: TypeAlias = Change | Term
"""What frames and snapshots hold."""

_KINDS: dict[str, tuple[type[LogEntry], type]] = {
    "key_put": (KeyPut, wire.KeyPut),
    "key_deleted": (KeyDeleted, wire.KeyDeleted),
    "queue_pushed": (QueuePushed, wire.QueuePushed),
    "queue_taken": (QueueTaken, wire.QueueTaken),
    "barrier_opened": (BarrierOpened, wire.BarrierOpened),
    "world_opened": (WorldOpened, wire.WorldOpened),
    "job_cleared": (JobCleared, wire.JobCleared),
    "job_forgotten": (JobForgotten, wire.JobForgotten),
    "revision_reached": (RevisionReached, wire.RevisionReached),
    "range_deleted": (RangeDeleted, wire.RangeDeleted),
    "history_compacted": (HistoryCompacted, wire.HistoryCompacted),
    "lease_granted": (LeaseGranted, wire.LeaseGranted),
    "lease_ended": (LeaseEnded, wire.LeaseEnded),
    "member_keys_deleted": (MemberKeysDeleted, wire.MemberKeysDeleted),
    "term": (Term, wire.Term),
    "token_created": (TokenCreated, wire.TokenCreated),
    "token_used": (TokenUsed, wire.TokenUsed),
    "token_revoked": (TokenRevoked, wire.TokenRevoked),
}
"""By the field of `wire.Change`; the fields of a kind have the same names on both sides."""
_FIELDS = {kind: tuple(one.name for one in fields(kind)) for kind, _ in _KINDS.values()}
_PLACES = {kind: (field, message) for field, (kind, message) in _KINDS.items()}


def encode_changes(changes: Iterable[LogEntry]) -> bytes:
    """Return the payload of a frame or of a snapshot's chunk."""
    return wire.Changes(changes=map(_encode_change, changes)).SerializeToString()


def decode_changes(payload: bytes, slot: int) -> Iterator[LogEntry]:
    """Iterate over the changes in a payload.

    Raises:
        LogDamaged: the bytes are no changes.
        LogTooNew: a change is of a kind that this version does not know.
    """
    try:
        read = wire.Changes.FromString(payload)
    except DecodeError as error:
        raise LogDamaged(slot, f"the bytes are no changes ({error})") from error
    for one in read.changes:
        field = one.WhichOneof("change")
        if field is None:
            raise LogTooNew(slot, "a change that this version of allhands does not know")
        kind, _ = _KINDS[field]
        message = getattr(one, field)
        yield kind(*(_read(message, name) for name in _FIELDS[kind]))


def _read(message: Any, name: str) -> Any:
    value = getattr(message, name)
    return value if isinstance(value, str | bytes | int | float) else tuple(value)


def _encode_change(change: LogEntry) -> wire.Change:
    field, message = _PLACES[type(change)]
    values = {name: getattr(change, name) for name in _FIELDS[type(change)]}
    return wire.Change(**{field: message(**values)})
