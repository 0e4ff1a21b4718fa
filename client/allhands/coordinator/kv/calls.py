"""The key-value calls, as every caller of them sees them: their names on the wire and in errors."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

import grpc

from allhands.coordinator.kv.values import quoted
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.v1 import kv_pb2

Q = TypeVar("Q")
P = TypeVar("P")

_CODES = {code.value[0]: code for code in grpc.StatusCode}


@dataclass(frozen=True, slots=True)
class KeyCall(Generic[Q, P]):
    """A kind of call: message Q asks, message P answers."""

    method: str
    """Of the gRPC service."""
    name: str
    """In kv.proto, of Call and of Reply."""
    doing: Callable[[Q], str]
    """Say what the caller wants, for an error's text."""
    patience: float = 0.0
    """Seconds after its time is over in which the coordinator may still say so itself: a call that
    takes something may have taken it."""

    def message(self, id: int, request: Q, timeout: float) -> bytes:
        """Return Calls of this one; the bytes of several, one after another, are also Calls."""
        calls = kv_pb2.Calls()
        call = calls.calls.add()
        call.id = id
        call.timeout = timeout
        getattr(call, self.name).MergeFrom(request)
        return calls.SerializeToString()

    def answer(self, reply: kv_pb2.Reply) -> P:
        """Return what the reply holds.

        Raises:
            CallFailed: a refusal.
        """
        if reply.HasField("refused"):
            raise CallFailed.refused(reply.refused)
        return cast(P, getattr(reply, self.name))


@dataclass(frozen=True, slots=True)
class CallsPort:
    """Where a coordinator takes lines, and what both sides of one prove that they know."""

    port: int
    secret: bytes = field(repr=False)


def calls_port(found: wire.CoordinatorDescription) -> CallsPort | None:
    """Read where lines are taken; None: nowhere."""
    return CallsPort(found.kv_port, found.kv_secret) if found.kv_port else None


class CallFailed(Exception):
    """A call on a line failed as one over gRPC does; see `channel.meaning`."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details

    @classmethod
    def refused(cls, refused: kv_pb2.Refused) -> "CallFailed":
        return cls(_CODES.get(refused.code, grpc.StatusCode.UNKNOWN), refused.text)


def too_late() -> CallFailed:
    """Say that the caller's time was over before there was an answer."""
    return CallFailed(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


def _of_key(verb: str) -> Callable[[Q], str]:
    return lambda request: f"{verb} {request.key!r}"  # type: ignore[attr-defined]


SET: KeyCall[wire.SetRequest, wire.SetReply] = KeyCall("Set", "set", _of_key("set key"))
GET: KeyCall[wire.GetRequest, wire.GetReply] = KeyCall("Get", "get", _of_key("get key"))
WAIT: KeyCall[wire.WaitRequest, wire.WaitReply] = KeyCall(
    "Wait", "wait", lambda request: f"wait for {quoted(request.keys)}"
)
ADD: KeyCall[wire.AddRequest, wire.AddReply] = KeyCall("Add", "add", _of_key("add to key"))
COMPARE_SET: KeyCall[wire.CompareSetRequest, wire.CompareSetReply] = KeyCall(
    "CompareSet", "compare_set", _of_key("compare and set")
)
APPEND: KeyCall[wire.AppendRequest, wire.AppendReply] = KeyCall(
    "Append", "append", _of_key("append to key")
)
MULTI_SET: KeyCall[wire.MultiSetRequest, wire.MultiSetReply] = KeyCall(
    "MultiSet", "multi_set", lambda request: f"set {quoted(pair.key for pair in request.pairs)}"
)
MULTI_GET: KeyCall[wire.MultiGetRequest, wire.MultiGetReply] = KeyCall(
    "MultiGet", "multi_get", lambda request: f"get {quoted(request.keys)}"
)
DELETE: KeyCall[wire.DeleteRequest, wire.DeleteReply] = KeyCall(
    "Delete", "delete", _of_key("delete key")
)
LIST: KeyCall[wire.ListRequest, wire.ListReply] = KeyCall(
    "List", "list", lambda request: f"list keys {request.prefix!r}*"
)
COUNT: KeyCall[wire.CountRequest, wire.CountReply] = KeyCall(
    "Count", "count", lambda _: "count keys"
)
QUEUE_PUSH: KeyCall[wire.QueuePushRequest, wire.QueuePushReply] = KeyCall(
    "QueuePush", "queue_push", _of_key("push to queue")
)
QUEUE_POP: KeyCall[wire.QueuePopRequest, wire.QueuePopReply] = KeyCall(
    "QueuePop", "queue_pop", _of_key("pop from queue"), patience=2.0
)
QUEUE_LENGTH: KeyCall[wire.QueueLengthRequest, wire.QueueLengthReply] = KeyCall(
    "QueueLength", "queue_length", _of_key("measure queue")
)
