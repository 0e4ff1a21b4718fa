"""Events of sessions as bytes: those to many members are encoded once for all."""

from collections.abc import Iterable, Iterator

from allhands_proto.quick_dataclass import dataclass
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_server.machine.effects import (
    Aborted,
    BrokenLinks,
    CallCancelled,
    Conditions,
    Draining,
    MemberLeft,
    MemberLost,
    MembersLeft,
    Newcomers,
    Notification,
    SilentLinks,
    WorldFormed,
)
from allhands_server.rpc import messages
from allhands_server.rpc.condition_codec import encode_in_full
from allhands_server.rpc.world_codec import pack_world

_SENT_TO_MANY = (
    WorldFormed,
    Newcomers,
    MemberLost,
    MemberLeft,
    MembersLeft,
    BrokenLinks,
    SilentLinks,
    Aborted,
    CallCancelled,
    Conditions,
    Draining,
)
_KEPT = 256
_LARGEST_KEPT = 32 << 20
"""Encoded notifications, and their bytes, that are kept for members still to come."""
_LARGEST_BATCH = 1 << 20
"""Bytes of one message with several events, if each has less."""
_BATCH_TAG = bytes([wire.SessionEvent.BATCH_FIELD_NUMBER << 3 | 2])
_PACKED_FROM = 32
"""Members of a world whose list is packed: all of them get all of it."""
_ONE_BY_ONE = 64
"""Conditions of one message for clients of versions that take each by itself."""


@dataclass(frozen=True, slots=True)
class EventForm:
    """What a member's version reads."""

    takes_batches: bool = False
    takes_conditions: bool = False
    takes_packed_members: bool = False
    takes_members_left: bool = False


class EventEncoder:
    """Encodes notifications for the sessions of one coordinator."""

    def __init__(self) -> None:
        self._encoded: dict[tuple[int, EventForm], tuple[Notification, tuple[bytes, ...]]] = {}
        self._nbytes = 0

    def encode_batch(self, batch: Iterable[Notification], form: EventForm) -> Iterator[bytes]:
        """Iterate over messages with the events of a batch, in order."""
        events = [event for one in batch for event in self._encode(one, form)]
        if not form.takes_batches:
            yield from events
            return
        part: list[bytes] = []
        nbytes = 0
        for event in events:
            if part and nbytes + len(event) > _LARGEST_BATCH:
                yield _join_events(part)
                part, nbytes = [], 0
            part.append(event)
            nbytes += len(event)
        if part:
            yield _join_events(part)

    def _encode(self, notification: Notification, form: EventForm) -> tuple[bytes, ...]:
        if not isinstance(notification, _SENT_TO_MANY):
            return (messages.encode_notification(notification).SerializeToString(),)
        key = id(notification), form
        known = self._encoded.get(key)
        if known is None:
            # With the notification itself: no other can have its id as long as it stands here.
            known = (notification, tuple(_encode_shared(notification, form)))
            self._nbytes += sum(map(len, known[1]))
            while len(self._encoded) >= _KEPT or (self._encoded and self._nbytes > _LARGEST_KEPT):
                oldest = self._encoded.pop(next(iter(self._encoded)))
                self._nbytes -= sum(map(len, oldest[1]))
            self._encoded[key] = known
        return known[1]


def _encode_shared(notification: Notification, form: EventForm) -> Iterator[bytes]:
    if isinstance(notification, Conditions) and not form.takes_conditions:
        for one in encode_in_full(notification.changes[:_ONE_BY_ONE]):
            yield wire.SessionEvent(condition=one).SerializeToString()
        return
    if isinstance(notification, MembersLeft) and not form.takes_members_left:
        for left in notification.gone:
            yield messages.encode_notification(left).SerializeToString()
        return
    if (
        isinstance(notification, WorldFormed)
        and form.takes_packed_members
        and len(notification.members) >= _PACKED_FROM
    ):
        yield wire.SessionEvent(world_formed=pack_world(notification)).SerializeToString()
    else:
        yield messages.encode_notification(notification).SerializeToString()


def _join_events(events: list[bytes]) -> bytes:
    """Return the message of a batch: a repeated field is its elements, one after the other."""
    if len(events) == 1:
        return events[0]
    parts: list[bytes] = []
    for event in events:
        parts += (_BATCH_TAG, _encode_varint(len(event)), event)
    return b"".join(parts)


def _encode_varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)
