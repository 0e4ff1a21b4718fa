"""Events, the input of the machine; times are seconds on the shell's monotonic clock."""

from typing import Any, TypeAlias

from allhands_server.machine.fast_dataclass import fast_dataclass
from allhands_server.machine.member_messages import Join, MemberMessage, Resume
from allhands_server.machine.requests import Request


@fast_dataclass
class Origin:
    """Where a request comes from, so that it has its effect once though it is asked again."""

    client: bytes
    """Name of the client: random bytes."""
    number: int
    """Of the client's requests, the same each time it is asked."""
    oldest: int
    """Number of its oldest request without an answer: it asks no older one again."""
    is_repeated: bool = False
    """Whether an earlier attempt may have arrived."""


@fast_dataclass
class RequestReceived:
    """A request has arrived; the answer or refusal will carry `ticket`, a unique number.

    At `due` it is refused, saying what was missing; None: it may wait without end.
    """

    ticket: int
    request: Request[Any]
    due: float | None = None
    origin: Origin | None = None
    """None: it is never asked again."""


@fast_dataclass
class RequestCancelled:
    """The caller has cancelled the request."""

    ticket: int


@fast_dataclass
class Randomness:
    """Fresh random values; the machine itself draws none."""

    member_id: str
    incarnation: str
    secret: bytes


@fast_dataclass
class SessionOpened:
    """A session, numbered by the shell, began with a Join."""

    session: int
    join: Join
    randomness: Randomness
    token: str = ""
    """Id of the caller's token; empty: the cluster's own."""
    at: float = 0.0
    """Time of the wall clock, with a token."""


@fast_dataclass
class SessionResumed:
    """A session, numbered by the shell, began with a Resume."""

    session: int
    resume: Resume


@fast_dataclass
class SessionMessage:
    """A message arrived on a session after its beginning."""

    session: int
    message: MemberMessage
    number: int = 0
    """Not 0: the sender keeps it until it is told that it was received."""


@fast_dataclass
class SessionBroken:
    """The session's stream has ended, possibly after a Leave."""

    session: int


@fast_dataclass
class AuthenticationFailed:
    """A caller tried to open a session without the token."""

    address: str
    reason: str


@fast_dataclass
class ProcessInspected:
    """Result of an `InspectProcess`: state of a member's process."""

    job: str
    member_id: str
    process_state: str
    stack: str = ""


@fast_dataclass
class ConnectionAcknowledged:
    """Result of a `CheckConnection`: the member's host acknowledges all data."""

    job: str
    member_id: str


@fast_dataclass
class Drain:
    """Refuse new members from now on.

    With a reason the coordinator is shut down: sessions are told the reason, and joiners are
    refused for good. Without one they may try again: rank 0 hosts the next one at the same place.
    """

    reason: str = ""


@fast_dataclass
class CommitDurable:
    """The oldest commit that was not durable is durable."""


@fast_dataclass
class CommitsRefused:
    """The log has taken in none of the commits that are not durable."""


@fast_dataclass
class Tick:
    """Time has passed, nothing else."""


Event: TypeAlias = (
    RequestReceived
    | RequestCancelled
    | SessionOpened
    | SessionResumed
    | SessionMessage
    | SessionBroken
    | AuthenticationFailed
    | ProcessInspected
    | ConnectionAcknowledged
    | Drain
    | CommitDurable
    | CommitsRefused
    | Tick
)
