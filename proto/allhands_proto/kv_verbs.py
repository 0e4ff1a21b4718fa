"""Key-value verbs: the calls of the key-value port, each also a gRPC method.

Names and messages come from `coordinator.proto`: a verb is a field of Call, the field of that name
in Reply, and the method that takes the same request. Client and server derive their code from it.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message

from allhands_proto.quick_dataclass import dataclass
from allhands_proto.v1 import coordinator_pb2 as wire

Q = TypeVar("Q", bound=Message)
P = TypeVar("P", bound=Message)

_ACTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "set": "set key",
        "get": "get key",
        "wait": "wait for",
        "add": "add to key",
        "compare_set": "compare and set",
        "append": "append to key",
        "multi_set": "set",
        "multi_get": "get",
        "delete": "delete key",
        "list": "list keys",
        "count": "count keys",
        "queue_push": "push to queue",
        "queue_pop": "pop from queue",
        "queue_length": "measure queue",
        "put": "put key",
        "range": "get key",
        "delete_range": "delete key",
        "txn": "carry out a transaction on keys",
        "compact": "compact the history",
        "watch": "watch key",
        "lease_grant": "grant a lease",
        "lease_revoke": "revoke lease",
        "lease_keep_alive": "keep alive lease",
        "lease_time_to_live": "ask for the time of lease",
        "lease_list": "list leases",
        "cancel_barrier": "cancel barrier",
        "list_barriers": "list barriers",
        "barrier": "wait at barrier",
    }
)
"""How errors call what a verb does, where its name alone would read badly; the keys follow."""

ANSWER_GRACE: Final = 0.5
"""Seconds after the deadline of a waiting call in which a busy coordinator may still say why."""
_GRACE_SECONDS: Final[Mapping[str, float]] = MappingProxyType(
    {**dict.fromkeys(("get", "wait", "barrier"), ANSWER_GRACE), "queue_pop": 2.0, "watch": 2.0}
)
"""The same for each verb. One that takes something may have taken it; and a watch without events
learns how far it has come."""

_WAITS: Final = frozenset((*_GRACE_SECONDS, "multi_get"))
_READS: Final = frozenset(
    (
        *("get", "wait", "multi_get", "list", "count", "queue_length", "range", "watch"),
        *("lease_time_to_live", "lease_list", "lease_keep_alive", "list_barriers"),
    )
)


@dataclass(frozen=True, slots=True)
class KvVerb(Generic[Q, P]):
    """A verb with its request message Q and its reply message P."""

    name: str
    """Name of the field in Call, and in Reply."""
    method: str
    """Name of the gRPC method."""
    request: type[Q]
    reply: type[P]

    @property
    def action(self) -> str:
        """Beginning of a description for an error's text."""
        return _ACTIONS.get(self.name) or self.name.replace("_", " ")

    @property
    def is_write(self) -> bool:
        """Whether it may change something, so that it must have its effect once."""
        return self.name not in _READS

    @property
    def is_wait(self) -> bool:
        """Whether its deadline may pass in a coordinator that waits for something to come."""
        return self.name in _WAITS

    @property
    def grace_seconds(self) -> float:
        """Seconds to wait for a reply after the deadline."""
        return _GRACE_SECONDS.get(self.name, 0.0)


def _read_verbs() -> Iterator[KvVerb[Any, Any]]:
    replies = wire.Reply.DESCRIPTOR.fields_by_name
    methods = {
        method.input_type: method.name
        for method in wire.DESCRIPTOR.services_by_name["Coordinator"].methods
    }
    for field in wire.Call.DESCRIPTOR.oneofs_by_name["call"].fields:
        if (request := field.message_type) not in methods:
            continue  # Cancel
        reply = replies[field.name].message_type
        assert request is not None
        assert reply is not None
        classes = getattr(wire, request.name), getattr(wire, reply.name)
        yield KvVerb(field.name, methods[request], *classes)


KV_VERBS: Final[Mapping[str, KvVerb[Any, Any]]] = MappingProxyType(
    {verb.name: verb for verb in _read_verbs()}
)
"""By name."""

_BY_REQUEST: Final = {verb.request: verb for verb in KV_VERBS.values()}


def find_verb(request: Q, reply: type[P]) -> KvVerb[Q, P]:
    """Return the verb of a request, which is answered with a `reply`."""
    verb = _BY_REQUEST[type(request)]
    assert verb.reply is reply, f"{verb.name} is not answered with {reply.__name__}"
    return verb
