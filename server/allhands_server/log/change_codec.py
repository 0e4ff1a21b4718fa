"""Changes as the bytes in frames and in snapshots, see log.proto.

A new kind of change, or a new field of one, needs a new `frame.VERSION`: an older daemon must
refuse the log, not pass over what it does not know.
"""

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any, TypeAlias, get_args

from google.protobuf.message import DecodeError, Message

from allhands_proto.v1 import coordinator_pb2, log_pb2
from allhands_proto.verdicts import AbsentRank, Verdict
from allhands_server.log.answer_codec import decode_answer, encode_answer
from allhands_server.log.errors import LogDamaged, LogTooNew
from allhands_server.machine.changes import Change, Completed
from allhands_server.machine.leadership import Term
from allhands_server.machine.member_messages import Join
from allhands_server.machine.values import Progress
from allhands_server.machine.world_changes import MemberRecord

LogEntry: TypeAlias = Change | Term
"""What frames and snapshots hold."""

_KINDS: tuple[type[LogEntry], ...] = get_args(LogEntry)
"""Each has a message of its name, with fields of the same names."""
_NESTED: dict[type, type[Message]] = {
    MemberRecord: log_pb2.MemberRecord,
    Join: log_pb2.JoinRecord,
    Progress: coordinator_pb2.Progress,
    AbsentRank: coordinator_pb2.AbsentRank,
    Verdict: coordinator_pb2.Verdict,
}
"""Values in changes, and their messages with the same fields."""
_PLACES = {
    type(getattr(log_pb2.Change(), one.name)): one.name for one in log_pb2.Change.DESCRIPTOR.fields
}
"""Field of `Change` by message."""
_MESSAGES: dict[type, type[Message]] = {
    **{kind: getattr(log_pb2, kind.__name__) for kind in _KINDS},
    **_NESTED,
}
_VALUES = {message.DESCRIPTOR.full_name: kind for kind, message in _MESSAGES.items()}
_FIELDS = {kind: tuple(one.name for one in fields(kind)) for kind in _MESSAGES}


def encode_changes(changes: Iterable[LogEntry]) -> bytes:
    """Return the payload of a frame or of a snapshot's chunk."""
    return log_pb2.Changes(changes=map(_encode_change, changes)).SerializeToString()


def decode_changes(payload: bytes, slot: int) -> Iterator[LogEntry]:
    """Iterate over the changes in a payload.

    Raises:
        LogDamaged: the bytes are no changes.
        LogTooNew: a change is of a kind that this version does not know.
    """
    try:
        read = log_pb2.Changes.FromString(payload)
    except DecodeError as error:
        raise LogDamaged(slot, f"the bytes are no changes ({error})") from error
    for one in read.changes:
        field = one.WhichOneof("change")
        if field is None:
            raise LogTooNew(slot, "a change that this version of allhands does not know")
        change = _decode(getattr(one, field))
        if isinstance(change, Completed):
            change = replace(change, answer=decode_answer(change.answer, slot))
        yield change


def _encode_change(change: LogEntry) -> log_pb2.Change:
    if isinstance(change, Completed):
        change = replace(change, answer=encode_answer(change.answer))
    encoded: dict[str, Any] = {_PLACES[_MESSAGES[type(change)]]: _encode(change)}
    return log_pb2.Change(**encoded)


def _encode(value: Any) -> Message:
    kind = type(value)
    return _MESSAGES[kind](**{name: _to_wire(getattr(value, name)) for name in _FIELDS[kind]})


def _to_wire(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_wire(one) for one in value]
    return _encode(value) if type(value) in _NESTED else value


def _decode(message: Message) -> Any:
    kind = _VALUES[message.DESCRIPTOR.full_name]
    known = message.DESCRIPTOR.fields_by_name
    return kind(*(_from_wire(message, known[name]) for name in _FIELDS[kind]))


def _from_wire(message: Message, field: Any) -> Any:
    if field.has_presence and not message.HasField(field.name):
        return None
    value = getattr(message, field.name)
    if isinstance(value, Message):
        return _decode(value)
    if isinstance(value, str | bytes | int | float):
        return value
    return tuple(map(_decode, value)) if field.message_type is not None else tuple(value)
