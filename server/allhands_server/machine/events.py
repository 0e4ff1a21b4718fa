"""What the machine is told. Times are seconds on the caller's monotonic clock.

A request names, as its parameter, the type of its answer: `Set(...)` is a `Request[int]`.
"""

from typing import Generic, TypeAlias, TypeVar

from allhands_proto.values import CallCancellation, CompareSetResult, Verdict
from allhands_server.machine.fast_dataclass import fast_dataclass
from allhands_server.machine.values import (
    CallStarts,
    Entry,
    GroupChange,
    JobView,
    MemberReport,
    Progress,
)

R = TypeVar("R")


class Request(Generic[R]):
    """A question that is answered once: with an R, or a refusal."""

    __slots__ = ()


# ---------------------------------------------------------------- key-value


@fast_dataclass
class Set(Request[int]):
    """Answered with the revision."""

    job: str
    key: str
    value: bytes


@fast_dataclass
class Get(Request[Entry]):
    job: str
    key: str
    wait: bool = False


@fast_dataclass
class Wait(Request[None]):
    """Answered when all keys exist at once."""

    job: str
    keys: tuple[str, ...]


@fast_dataclass
class Add(Request[int]):
    """Answered with the sum."""

    job: str
    key: str
    amount: int


@fast_dataclass
class CompareSet(Request[CompareSetResult]):
    job: str
    key: str
    expected: bytes
    desired: bytes


@fast_dataclass
class Append(Request[int]):
    """Answered with the new length in bytes."""

    job: str
    key: str
    value: bytes


@fast_dataclass
class MultiSet(Request[int]):
    """Answered with the revision; of pairs with one key the last counts."""

    job: str
    pairs: tuple[tuple[str, bytes], ...]


@fast_dataclass
class MultiGet(Request[tuple[bytes, ...]]):
    job: str
    keys: tuple[str, ...]
    wait: bool = False


@fast_dataclass
class Delete(Request[bool]):
    """Answered with whether the key existed."""

    job: str
    key: str


@fast_dataclass
class ListKeys(Request[tuple[str, ...]]):
    job: str
    prefix: str = ""


@fast_dataclass
class Count(Request[int]):
    job: str


KeyRequest: TypeAlias = (
    Set | Get | Wait | Add | CompareSet | Append | MultiSet | MultiGet | Delete | ListKeys | Count
)

# ---------------------------------------------------------------- queues


@fast_dataclass
class QueuePush(Request[int]):
    """Answered with how many values wait in the queue now; 0: it has been popped already."""

    job: str
    key: str
    value: bytes


@fast_dataclass
class QueuePop(Request[bytes]):
    job: str
    key: str
    wait: bool = False


@fast_dataclass
class QueueLength(Request[int]):
    job: str
    key: str


QueueRequest: TypeAlias = QueuePush | QueuePop | QueueLength

# ---------------------------------------------------------------- other requests


@fast_dataclass
class Barrier(Request[int]):
    """Arrive at a barrier; answered with its generation when all participants have."""

    job: str
    name: str
    participant: str
    participants: tuple[str, ...]


@fast_dataclass
class AwaitVerdict(Request[Verdict | CallCancellation]):
    """Ask, until the call's deadline, who is missing in it; `waiting_on` are ranks of the world.

    The answer comes when the call is due, and somewhat later where members are still being asked.
    """

    job: str
    member_id: str
    group: str
    sequence: int
    operation: str
    waiting_on: tuple[int, ...] = ()


@fast_dataclass
class ChangeGroup(Request[GroupChange]):
    """Decide with all present members of a group; see coordinator.proto."""

    job: str
    member_id: str
    group: str
    kind: str
    flag: bool = False
    wanted: int = 0
    returned: int = 0
    computed: int = 0


@fast_dataclass
class MonitoredBarrier(Request[Verdict | None]):
    """Arrive at a monitored barrier: None when all members of the group have arrived.

    The verdict of the first who runs out of time is everybody's, also of those who come later.
    """

    job: str
    member_id: str
    group: str
    sequence: int


@fast_dataclass
class AbortJob(Request[int]):
    """Release the members of a job; answered with how many were told."""

    job: str
    by: str
    reason: str


@fast_dataclass
class DeleteJob(Request[int]):
    """Forget a job; with `force` also one that has members, who are expelled.

    Answered with how many these were.
    """

    job: str
    by: str
    force: bool = False


@fast_dataclass
class ReportExit(Request[bool]):
    """Tell how a process ended (-n: by signal n); answered with whether it is a known member."""

    job: str
    space: str
    pid: int
    born: str
    status: int


@fast_dataclass
class ListJobs(Request[tuple[JobView, ...]]):
    """Answered by name."""


@fast_dataclass
class DescribeJob(Request[JobView]):
    job: str


@fast_dataclass
class CollectReports(Request[tuple[MemberReport, ...]]):
    """Ask all members what they have recorded, `operations` of each group; answered by rank."""

    job: str
    operations: int


AnyRequest: TypeAlias = (
    KeyRequest
    | QueueRequest
    | Barrier
    | AwaitVerdict
    | MonitoredBarrier
    | ChangeGroup
    | AbortJob
    | DeleteJob
    | ReportExit
    | ListJobs
    | DescribeJob
    | CollectReports
)

# ---------------------------------------------------------------- what a session says


@fast_dataclass
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
    elastic: bool = False
    most: int = 0
    space: str = ""
    born: str = ""
    watched: bool = False
    stack_channel: str = ""


@fast_dataclass
class Heartbeat:
    probe: int = 0
    progress: tuple[Progress, ...] = ()
    stack: str = ""
    sent: float = 0.0
    begun: tuple[CallStarts, ...] = ()


@fast_dataclass
class OpenGroup:
    group: str
    ranks: tuple[int, ...]


@fast_dataclass
class CloseGroup:
    group: str


@fast_dataclass
class LinkBroken:
    rank: int
    reason: str
    shares_memory: bool = False


@fast_dataclass
class LinkSilent:
    """Nothing has come from `rank` for so long, though it was pinged; or something has again."""

    rank: int
    seconds: float = 0.0
    is_over: bool = False


@fast_dataclass
class Leave:
    progress: tuple[Progress, ...] = ()
    error: str = ""
    traceback: str = ""
    aborts: bool = False
    report: bytes = b""


@fast_dataclass
class PeerInspected:
    """What a neighbour saw of the process of a member; see coordinator.proto."""

    member_id: str
    found: str
    stack: str = ""


@fast_dataclass
class IndirectAck:
    """A member's answer to a `Vouch`: it hears that rank over a link."""

    rank: int


@fast_dataclass
class Abort:
    group: str
    reason: str


@fast_dataclass
class CancelCall:
    group: str
    sequence: int
    reason: str


@fast_dataclass
class ReportPart:
    """A piece of what a member was asked for by a `Collect`."""

    number: int
    data: bytes
    is_last: bool


@fast_dataclass
class LastReport:
    """What a member had recorded when it heard of a failure."""

    report: bytes


MemberMessage: TypeAlias = (
    Heartbeat
    | OpenGroup
    | CloseGroup
    | LinkBroken
    | LinkSilent
    | Leave
    | PeerInspected
    | IndirectAck
    | Abort
    | CancelCall
    | ReportPart
    | LastReport
)

# ---------------------------------------------------------------- events


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
    why: str


@fast_dataclass
class ProcessInspected:
    """The answer to a `Look`: what the coordinator itself saw of a member's process."""

    job: str
    member_id: str
    found: str
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
