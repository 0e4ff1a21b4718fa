"""Table of the key-value calls: names on the wire and in errors."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

import grpc

from allhands.coordinator.kv.values import format_keys
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.v1 import kv_pb2

Q = TypeVar("Q")
P = TypeVar("P")

_CODES = {code.value[0]: code for code in grpc.StatusCode}


@dataclass(frozen=True, slots=True)
class KvCall(Generic[Q, P]):
    """A kind of call: message Q asks, message P answers."""

    method: str
    """Of the gRPC service."""
    field_name: str
    """In kv.proto, of Call and of Reply."""
    describe: Callable[[Q], str]
    """Say what the caller wants, for an error's text."""
    grace_seconds: float = 0.0
    """Seconds after its time is over in which the coordinator may still say so itself: a call that
    takes something may have taken it."""

    def encode(self, id: int, request: Q, timeout: float) -> bytes:
        """Return Calls of this one; the bytes of several, one after another, are also Calls."""
        calls = kv_pb2.Calls()
        call = calls.calls.add()
        call.id = id
        call.timeout = timeout
        getattr(call, self.field_name).MergeFrom(request)
        return calls.SerializeToString()

    def decode(self, reply: kv_pb2.Reply) -> P:
        """Return what the reply holds.

        Raises:
            CallFailed: a refusal.
        """
        if reply.HasField("refused"):
            raise KvCallError.from_refusal(reply.refused)
        return cast(P, getattr(reply, self.field_name))


@dataclass(frozen=True, slots=True)
class KvPort:
    """Where a coordinator takes lines, and what both sides of one prove that they know."""

    port: int
    secret: bytes = field(repr=False)


def read_kv_port(description: wire.CoordinatorDescription) -> KvPort | None:
    """Read where lines are taken; None: nowhere."""
    return KvPort(description.kv_port, description.kv_secret) if description.kv_port else None


class KvCallError(Exception):
    """A call on a line failed as one over gRPC does; see `channel.meaning`."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details

    @classmethod
    def from_refusal(cls, refusal: kv_pb2.Refused) -> "KvCallError":
        return cls(_CODES.get(refusal.code, grpc.StatusCode.UNKNOWN), refusal.text)


def make_deadline_error() -> KvCallError:
    """Say that the caller's time was over before there was an answer."""
    return KvCallError(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


def _describe_by_key(verb: str) -> Callable[[Q], str]:
    return lambda request: f"{verb} {request.key!r}"  # type: ignore[attr-defined]


SET: KvCall[wire.SetRequest, wire.SetReply] = KvCall("Set", "set", _describe_by_key("set key"))
GET: KvCall[wire.GetRequest, wire.GetReply] = KvCall("Get", "get", _describe_by_key("get key"))
WAIT: KvCall[wire.WaitRequest, wire.WaitReply] = KvCall(
    "Wait", "wait", lambda request: f"wait for {format_keys(request.keys)}"
)
ADD: KvCall[wire.AddRequest, wire.AddReply] = KvCall("Add", "add", _describe_by_key("add to key"))
COMPARE_SET: KvCall[wire.CompareSetRequest, wire.CompareSetReply] = KvCall(
    "CompareSet", "compare_set", _describe_by_key("compare and set")
)
APPEND: KvCall[wire.AppendRequest, wire.AppendReply] = KvCall(
    "Append", "append", _describe_by_key("append to key")
)
MULTI_SET: KvCall[wire.MultiSetRequest, wire.MultiSetReply] = KvCall(
    "MultiSet",
    "multi_set",
    lambda request: f"set {format_keys(pair.key for pair in request.pairs)}",
)
MULTI_GET: KvCall[wire.MultiGetRequest, wire.MultiGetReply] = KvCall(
    "MultiGet", "multi_get", lambda request: f"get {format_keys(request.keys)}"
)
DELETE: KvCall[wire.DeleteRequest, wire.DeleteReply] = KvCall(
    "Delete", "delete", _describe_by_key("delete key")
)
LIST: KvCall[wire.ListRequest, wire.ListReply] = KvCall(
    "List", "list", lambda request: f"list keys {request.prefix!r}*"
)
COUNT: KvCall[wire.CountRequest, wire.CountReply] = KvCall("Count", "count", lambda _: "count keys")
QUEUE_PUSH: KvCall[wire.QueuePushRequest, wire.QueuePushReply] = KvCall(
    "QueuePush", "queue_push", _describe_by_key("push to queue")
)
QUEUE_POP: KvCall[wire.QueuePopRequest, wire.QueuePopReply] = KvCall(
    "QueuePop", "queue_pop", _describe_by_key("pop from queue"), grace_seconds=2.0
)
QUEUE_LENGTH: KvCall[wire.QueueLengthRequest, wire.QueueLengthReply] = KvCall(
    "QueueLength", "queue_length", _describe_by_key("measure queue")
)
