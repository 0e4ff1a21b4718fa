"""Key-value verbs: the one table of the calls of the key-value port, each also a gRPC method.

Names come from the `.proto` files: of a verb's field in Call and Reply, and of its method. Client
and server derive their code from the rows here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.v1 import kv_pb2

Q = TypeVar("Q", bound=Message)
P = TypeVar("P", bound=Message)

_FIELDS: dict[object, str] = {
    field.message_type: field.name for field in kv_pb2.Call.DESCRIPTOR.oneofs_by_name["call"].fields
}
_METHODS: dict[object, str] = {
    method.input_type: method.name
    for method in wire.DESCRIPTOR.services_by_name["Coordinator"].methods
}


@dataclass(frozen=True, slots=True)
class KvVerb(Generic[Q, P]):
    """A verb with its request message Q and its reply message P."""

    request: type[Q]
    reply: type[P]
    action: str
    """Beginning of a description for an error's text; the keys follow."""
    grace_seconds: float = 0.0
    """Seconds after the deadline in which the coordinator may still refuse by itself: a verb that
    takes something may have taken it."""

    name: str = field(init=False)
    """Name of the field in Call, and in Reply."""
    method: str = field(init=False)
    """Name of the gRPC method."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", _FIELDS[self.request.DESCRIPTOR])
        object.__setattr__(self, "method", _METHODS[self.request.DESCRIPTOR])


SET = KvVerb(wire.SetRequest, wire.SetReply, "set key")
GET = KvVerb(wire.GetRequest, wire.GetReply, "get key")
WAIT = KvVerb(wire.WaitRequest, wire.WaitReply, "wait for")
ADD = KvVerb(wire.AddRequest, wire.AddReply, "add to key")
COMPARE_SET = KvVerb(wire.CompareSetRequest, wire.CompareSetReply, "compare and set")
APPEND = KvVerb(wire.AppendRequest, wire.AppendReply, "append to key")
MULTI_SET = KvVerb(wire.MultiSetRequest, wire.MultiSetReply, "set")
MULTI_GET = KvVerb(wire.MultiGetRequest, wire.MultiGetReply, "get")
DELETE = KvVerb(wire.DeleteRequest, wire.DeleteReply, "delete key")
LIST = KvVerb(wire.ListRequest, wire.ListReply, "list keys")
COUNT = KvVerb(wire.CountRequest, wire.CountReply, "count keys")
QUEUE_PUSH = KvVerb(wire.QueuePushRequest, wire.QueuePushReply, "push to queue")
QUEUE_POP = KvVerb(wire.QueuePopRequest, wire.QueuePopReply, "pop from queue", grace_seconds=2.0)
QUEUE_LENGTH = KvVerb(wire.QueueLengthRequest, wire.QueueLengthReply, "measure queue")

KV_VERBS: Mapping[str, KvVerb[Any, Any]] = {
    row.name: row for row in [*globals().values()] if isinstance(row, KvVerb)
}
"""By name."""
