"""Calls of key-value verbs: messages to bytes and back, and their description in errors."""

import contextlib
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import field, replace
from typing import Any, Final, TypeAlias, TypeVar, cast

import grpc

from allhands.coordinator.call_failed import RpcFailure
from allhands.coordinator.daemon_choice import find_leader
from allhands.coordinator.endpoint import Endpoint, check_privacy, parse_url
from allhands.coordinator.kv.values import format_keys
from allhands_proto.kv_handshake import CallerHandshake, NoCommonVersion
from allhands_proto.kv_verbs import KvVerb, P, Q
from allhands_proto.quick_dataclass import dataclass
from allhands_proto.v1 import coordinator_pb2 as wire

A = TypeVar("A")
T = TypeVar("T")

TO_THE_END = "\0"
"""In the place of a range's end: all keys from the first on."""

AnyVerb: TypeAlias = KvVerb[Any, Any]

_LATER_VERBS: Final = frozenset(("barrier", "cancel_barrier", "list_barriers"))
"""Verbs of coordinators that name what their key-value port takes."""
_RETRY_KEY = "allhands-retry-after"
_SPREAD = 1.5
_CODES = {code.value[0]: code for code in grpc.StatusCode}


def encode_call(
    verb: KvVerb[Q, P], id: int, request: Q, timeout: float, origin: wire.Origin | None = None
) -> bytes:
    """Encode a call as a Calls message; concatenated encodings are a Calls message too."""
    calls = wire.Calls()
    call = calls.calls.add()
    call.id = id
    call.timeout = timeout
    if origin is not None:
        call.origin.CopyFrom(origin)
    getattr(call, verb.name).MergeFrom(request)
    return calls.SerializeToString()


def decode_reply(verb: KvVerb[Q, P], reply: wire.Reply) -> P:
    """Return the message of the verb in the reply.

    Raises:
        KvCallError: a refusal.
    """
    if reply.HasField("refused"):
        raise KvCallError.from_refusal(reply.refused)
    return cast(P, getattr(reply, verb.name))


def describe_call(verb: KvVerb[Q, P], request: Q) -> str:
    """Name the action of the verb and its keys, for an error's text."""
    message: Any = request
    named = request.DESCRIPTOR.fields_by_name
    if "range_end" in named:
        return f"{verb.action} {_describe_range(message)}"
    if "lease" in named and "key" not in named and message.lease:
        return f"{verb.action} {message.lease}"
    if "key" in named:
        return f"{verb.action} {message.key!r}"
    if "participant" in named:
        return f"{verb.action} {message.name!r} as {message.participant!r}"
    if "name" in named:
        return f"{verb.action} {message.name!r}"
    if "keys" in named:
        return f"{verb.action} {format_keys(message.keys)}"
    if "pairs" in named:
        return f"{verb.action} {format_keys(pair.key for pair in message.pairs)}"
    if "prefix" in named:
        return f"{verb.action} {message.prefix!r}*"
    return verb.action


def _describe_range(message: Any) -> str:
    if message.prefix:
        return f"{message.key!r}*"
    if message.range_end == TO_THE_END:
        return f"{message.key!r} and all behind"
    return f"{message.key!r} to {message.range_end!r}" if message.range_end else repr(message.key)


@dataclass(frozen=True, slots=True)
class KvPort:
    """Address of a coordinator's key-value port, and the shared secret."""

    port: int
    secret: bytes = field(repr=False)
    token_id: str = ""
    """Id of the token that the secret is for; empty: the cluster's own."""
    verbs: frozenset[str] = frozenset()
    """Names of the verbs that it takes; empty: those of its first version."""
    addresses: tuple[str, ...] = ()
    """`host:port` where it is reached; empty: on the host of the coordinator."""

    def takes(self, verb: AnyVerb) -> bool:
        """Whether calls of a verb can be made here; else they go by gRPC."""
        return verb.name in self.verbs if self.verbs else verb.name not in _LATER_VERBS


def list_kv_addresses(endpoint: Endpoint, port: KvPort) -> list[tuple[str, int]]:
    """List where to connect to the port; without TLS, only what may be spoken to in plaintext.

    Without TLS names are resolved, which may block.
    """
    if not port.addresses:
        return [(endpoint.address.host, port.port)]
    found = []
    for text in port.addresses:
        with contextlib.suppress(ValueError):
            allowed = check_privacy(replace(endpoint, address=parse_url(f"ah://{text}"))).address
            found.append((allowed.host, allowed.port))
    return found


def read_kv_port(description: wire.CoordinatorDescription) -> KvPort | None:
    """Read where lines are taken; None: nowhere."""
    if not description.kv_port:
        return None
    return KvPort(
        description.kv_port,
        description.kv_secret,
        description.token_id,
        frozenset(description.kv_verbs),
        tuple(description.kv_addresses),
    )


class KvCallError(Exception):
    """A key-value call failed with a gRPC status; see `status_errors`."""

    def __init__(
        self,
        code: grpc.StatusCode,
        details: str,
        leader: str = "",
        retry_after: float | None = None,
    ) -> None:
        """Make the error of a call.

        Args:
            leader: address of the daemon that has to be asked instead, if it is known.
            retry_after: seconds after which the call can be made again, if they are known.
        """
        super().__init__(details)
        self.code = code
        self.details = details
        self.leader = leader
        self.retry_after = retry_after

    @classmethod
    def from_refusal(cls, refusal: wire.Refused) -> "KvCallError":
        code = _CODES.get(refusal.code, grpc.StatusCode.UNKNOWN)
        retry_after = refusal.retry_after if refusal.HasField("retry_after") else None
        return cls(code, refusal.text, refusal.leader, retry_after)


def answer_challenge(handshake: CallerHandshake, challenge: bytes) -> bytes:
    """Return the frame of this side's proof.

    Raises:
        KvCallError: the coordinator has no version in common with this side.
        PermissionError, DecodeError: as `CallerHandshake.answer`.
    """
    try:
        return handshake.answer(challenge)
    except NoCommonVersion as error:
        raise KvCallError(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from error


def may_come_back(error: "KvCallError | grpc.RpcError") -> bool:
    """Whether the coordinator of a failed call is away, and not another daemon the one to ask."""
    if isinstance(error, KvCallError):
        return error.code is grpc.StatusCode.UNAVAILABLE and not error.leader
    return error.code() is grpc.StatusCode.UNAVAILABLE and not find_leader(error)


def is_past_deadline(error: "KvCallError | grpc.RpcError") -> bool:
    """Whether a call failed for want of an answer at its deadline."""
    code = error.code if isinstance(error, KvCallError) else error.code()
    return code is grpc.StatusCode.DEADLINE_EXCEEDED


def find_retry_after(error: "KvCallError | RpcFailure") -> float | None:
    """Return the seconds after which a refused call can be made again; None: nobody knows."""
    if isinstance(error, KvCallError):
        return error.retry_after
    trailers: Iterable[Any] = error.trailing_metadata() or ()
    for key, value in trailers:
        if key == _RETRY_KEY:
            with contextlib.suppress(ValueError):
                return max(float(value), 0.0)
    return None


def find_pause(error: "KvCallError | RpcFailure", deadline: float) -> float | None:
    """Return the seconds to wait before a call that was above a rate is made again.

    Callers that were refused together do not come again together. None: the call is not to be made
    again, for its deadline (monotonic clock) as well.
    """
    if (retry_after := find_retry_after(error)) is None:
        return None
    pause = retry_after * random.uniform(1.0, _SPREAD)
    return pause if time.monotonic() + pause < deadline else None


def repeat_slowed(
    attempt: Callable[[A], T],
    deadline: float,
    is_over: Callable[[], bool],
    argument: A,
) -> T:
    """Make an attempt, and again while the coordinator says when to make it again.

    Raises:
        KvCallError, grpc.RpcError: the last one failed; no other is made after the deadline, or
            when `is_over` says that nobody waits for it.
    """
    while True:
        try:
            return attempt(argument)
        except (KvCallError, grpc.RpcError) as error:
            pause = find_pause(error, deadline)
            if pause is None or is_over():
                raise
        time.sleep(pause)


def make_deadline_error() -> KvCallError:
    """Make the error of a call past its deadline without a reply."""
    return KvCallError(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
