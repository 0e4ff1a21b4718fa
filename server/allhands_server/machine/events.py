"""What the machine is told. Times are seconds on the caller's monotonic clock.

A request names, as its parameter, the type of its answer: `Set(...)` is a `Request[int]`.
"""

from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from allhands_server.machine.values import Compared, Entry, JobView, Progress, Verdict

R = TypeVar("R")


class Request(Generic[R]):
    """A question that is answered once: with an R, or a refusal."""

    __slots__ = ()


# ---------------------------------------------------------------- key-value


@dataclass(frozen=True, slots=True)
class Set(Request[int]):
    """Answered with the revision."""

    job: str
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Get(Request[Entry]):
    job: str
    key: str
    wait: bool = False


@dataclass(frozen=True, slots=True)
class Wait(Request[None]):
    """Answered when all keys exist at once."""

    job: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Add(Request[int]):
    """Answered with the sum."""

    job: str
    key: str
    amount: int


@dataclass(frozen=True, slots=True)
class CompareSet(Request[Compared]):
    job: str
    key: str
    expected: bytes
    desired: bytes


@dataclass(frozen=True, slots=True)
class Append(Request[int]):
    """Answered with the new length in bytes."""

    job: str
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class MultiSet(Request[int]):
    """Answered with the revision; of pairs with one key the last counts."""

    job: str
    pairs: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class MultiGet(Request[tuple[bytes, ...]]):
    job: str
    keys: tuple[str, ...]
    wait: bool = False


@dataclass(frozen=True, slots=True)
class Delete(Request[bool]):
    """Answered with whether the key existed."""

    job: str
    key: str


@dataclass(frozen=True, slots=True)
class ListKeys(Request[tuple[str, ...]]):
    job: str
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Count(Request[int]):
    job: str


KeyRequest: TypeAlias = (
    Set | Get | Wait | Add | CompareSet | Append | MultiSet | MultiGet | Delete | ListKeys | Count
)

# ---------------------------------------------------------------- other requests


@dataclass(frozen=True, slots=True)
class Arrive(Request[int]):
    """Arrive at a barrier; answered with its generation when all participants have."""

    job: str
    name: str
    participant: str
    participants: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AwaitVerdict(Request[Verdict]):
    """Ask, until the call's deadline, who is missing in it; `waiting_on` are ranks of the world."""

    job: str
    member_id: str
    group: str
    sequence: int
    operation: str
    waiting_on: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ListJobs(Request[tuple[JobView, ...]]):
    """Answered by name."""


@dataclass(frozen=True, slots=True)
class DescribeJob(Request[JobView]):
    job: str


AnyRequest: TypeAlias = KeyRequest | Arrive | AwaitVerdict | ListJobs | DescribeJob

# ---------------------------------------------------------------- what a session says


@dataclass(frozen=True, slots=True)
class Join:
    """See coordinator.proto; `address` is where peers reach the worker: host:port."""

    job: str
    rank: int
    world_size: int
    host: str
    pid: int
    address: str
    heartbeat_window: float = 0.0
    label: str = ""
    hosts_coordinator: bool = False
    memory: str = ""
    data_port: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    probe: int = 0
    progress: tuple[Progress, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenGroup:
    group: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CloseGroup:
    group: str


@dataclass(frozen=True, slots=True)
class LinkBroken:
    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Leave:
    progress: tuple[Progress, ...] = ()
    error: str = ""


Remark: TypeAlias = Heartbeat | OpenGroup | CloseGroup | LinkBroken | Leave

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Asked:
    """A request has come; its answer or refusal will carry `ticket`, which is used once.

    At `due` it is refused, saying what was missing; None: it may wait without end.
    """

    ticket: int
    request: AnyRequest
    due: float | None = None


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Whoever asked does not want the answer any more."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Fresh:
    """Random values that nobody has seen; the machine itself draws none."""

    member_id: str
    incarnation: str
    secret: bytes


@dataclass(frozen=True, slots=True)
class Joining:
    """A session, numbered by the caller, began with a Join."""

    session: int
    join: Join
    fresh: Fresh


@dataclass(frozen=True, slots=True)
class Said:
    """A session said something after its Join."""

    session: int
    remark: Remark


@dataclass(frozen=True, slots=True)
class SessionBroke:
    """The stream is over and nothing can be pushed to it; a Leave may have come before."""

    session: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Take in nobody any more; with a reason, the sessions are told it."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed, nothing else."""


Event: TypeAlias = Asked | Withdrawn | Joining | Said | SessionBroke | Drain | Tick
