"""Events, the input of the machine; times are seconds on the shell's monotonic clock."""

from typing import TypeAlias

from allhands_server.machine.fast_dataclass import fast_dataclass
from allhands_server.machine.member_messages import Join, MemberMessage
from allhands_server.machine.requests import AnyRequest


@fast_dataclass
class RequestReceived:
    """A request has come; its answer or refusal will carry `ticket`, which is used once.

    At `due` it is refused, saying what was missing; None: it may wait without end.
    """

    ticket: int
    request: AnyRequest
    due: float | None = None


@fast_dataclass
class RequestCancelled:
    """Whoever asked does not want the answer any more."""

    ticket: int


@fast_dataclass
class Randomness:
    """Random values that nobody has seen; the machine itself draws none."""

    member_id: str
    incarnation: str
    secret: bytes


@fast_dataclass
class SessionOpened:
    """A session, numbered by the caller, began with a Join."""

    session: int
    join: Join
    randomness: Randomness


@fast_dataclass
class SessionMessage:
    """A session said something after its Join."""

    session: int
    remark: MemberMessage


@fast_dataclass
class SessionBroken:
    """The stream is over and nothing can be pushed to it; a Leave may have come before."""

    session: int


@fast_dataclass
class AuthenticationFailed:
    """Somebody wanted to begin a session and has not shown the token."""

    address: str
    reason: str


@fast_dataclass
class ProcessInspected:
    """The answer to a `Look`: what the coordinator itself saw of a member's process."""

    job: str
    member_id: str
    process_state: str
    stack: str = ""


@fast_dataclass
class ConnectionAcknowledged:
    """The answer to a `CheckConnection` where the member's host acknowledges all it was sent."""

    job: str
    member_id: str


@fast_dataclass
class Drain:
    """Take in nobody any more.

    With a reason the coordinator is shut down: sessions are told the reason, and joiners are
    refused for good. Without one they may try again: rank 0 hosts the next one at the same place.
    """

    reason: str = ""


@fast_dataclass
class Tick:
    """Time has passed, nothing else."""


Event: TypeAlias = (
    RequestReceived
    | RequestCancelled
    | SessionOpened
    | SessionMessage
    | SessionBroken
    | AuthenticationFailed
    | ProcessInspected
    | ConnectionAcknowledged
    | Drain
    | Tick
)
