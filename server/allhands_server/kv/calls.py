"""Conversion of key-value verbs for the gRPC and key-value ports: messages to requests and back.

Derived from the table of verbs: a request of the machine is named after the verb's method, and has
the fields of its message; an answer is the reply's only field. Replies with several fields have a
function of their own here.
"""

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeAlias, get_args

from google.protobuf.message import Message

from allhands_proto.kv_results import CompareSetResult
from allhands_proto.kv_verbs import KV_VERBS, KvVerb
from allhands_proto.quick_dataclass import dataclass
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_server.kv.record_codec import RECORD_FILLS, read_txn
from allhands_server.machine.changes import KeyPut
from allhands_server.machine.limits import REQUEST_KEYS
from allhands_server.machine.refusals import Refused, Status
from allhands_server.machine.requests import BarrierRequest, Request
from allhands_server.machine.store.keys import KeyRequest
from allhands_server.machine.store.leases import LeaseRequest
from allhands_server.machine.store.queues import QueueRequest
from allhands_server.machine.store.watches import Watch

AnyVerb: TypeAlias = KvVerb[Any, Any]
Parse: TypeAlias = Callable[[Any], Request[Any]]
Fill: TypeAlias = Callable[[Any, Any], int]

NOT_SLOWED = frozenset(("lease_keep_alive",))
"""Names of verbs that no rate delays: leases would end."""
_SMALL = 16
_REQUESTS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *get_args(KeyRequest),
        *get_args(QueueRequest),
        *get_args(LeaseRequest),
        *get_args(BarrierRequest),
        Watch,
    )
}


@dataclass(frozen=True, slots=True)
class KvCall:
    """A verb with conversions."""

    verb: AnyVerb
    parse: Parse
    """Return the request of a message."""
    fill: Fill
    """Write the answer into the empty reply; return about how many bytes it takes."""


def _derive_parse(verb: AnyVerb) -> Parse:
    request = _REQUESTS[verb.method]
    names = [field.name for field in fields(request)]
    if len(names) > 1 and not any(_is_repeated(verb.request, name) for name in names):
        read_all = attrgetter(*names)  # in one step: the coordinator's time is many such calls
        return lambda message: request(*read_all(message))
    readers = [_derive_reader(verb.request, name) for name in names]
    return lambda message: request(*[read(message) for read in readers])


def _derive_reader(message: type[Message], name: str) -> Callable[[Message], Any]:
    if not _is_repeated(message, name):
        return attrgetter(name)
    read = _derive_limited_reader(name)
    if (inner := message.DESCRIPTOR.fields_by_name[name].message_type) is None:
        return lambda message: tuple(read(message))
    read_each = attrgetter(*(field.name for field in inner.fields))
    return lambda message: tuple(map(read_each, read(message)))


def _derive_limited_reader(name: str) -> Callable[[Message], Any]:
    read = attrgetter(name)

    def read_limited(message: Message) -> Any:
        if len(found := read(message)) > REQUEST_KEYS:
            text = f"{len(found):,} {name} in one request; {REQUEST_KEYS:,} is the most"
            raise Refused(Status.INVALID_ARGUMENT, text)
        return found

    return read_limited


def _derive_fill(verb: AnyVerb) -> Fill:
    if not verb.reply.DESCRIPTOR.fields:
        return lambda reply, answer: _SMALL
    (field,) = verb.reply.DESCRIPTOR.fields
    name = field.name
    empty = getattr(verb.reply(), name)

    def fill_number(reply: Message, answer: int) -> int:
        setattr(reply, name, answer)
        return _SMALL

    def fill_bytes(reply: Message, answer: bytes) -> int:
        setattr(reply, name, answer)
        return _SMALL + len(answer)

    def fill_list(reply: Message, answer: tuple[bytes, ...] | tuple[str, ...]) -> int:
        getattr(reply, name).extend(answer)
        return sum(_SMALL + len(value) for value in answer)

    if hasattr(empty, "extend"):
        return fill_list
    return fill_bytes if isinstance(empty, bytes) else fill_number


def _fill_get(reply: wire.GetReply, found: KeyPut) -> int:
    reply.value = found.value
    reply.revision = found.revision
    return _SMALL + len(found.value)


def _fill_compare_set(reply: wire.CompareSetReply, found: CompareSetResult) -> int:
    reply.swapped = found.swapped
    if found.value is None:
        return _SMALL
    reply.exists = True
    reply.value = found.value
    return _SMALL + len(found.value)


def _is_repeated(message: type[Message], name: str) -> bool:
    return hasattr(getattr(message(), name), "extend")


_FILLS: dict[type[Message], Fill] = {
    wire.GetReply: _fill_get,
    wire.CompareSetReply: _fill_compare_set,
    **RECORD_FILLS,
}
"""Of replies with several fields."""
_PARSES: dict[type[Message], Parse] = {wire.TxnRequest: read_txn}
"""Of requests with messages inside."""

KV_CALLS = {
    name: KvCall(
        verb,
        _PARSES.get(verb.request) or _derive_parse(verb),
        _FILLS.get(verb.reply) or _derive_fill(verb),
    )
    for name, verb in KV_VERBS.items()
}
"""By the name of the verb's field in a Call, and of its reply in a Reply."""
