"""What the machine is told. Times are seconds on the caller's monotonic clock.

A request names, as its parameter, the type of its answer: `Set(...)` is a `Request[int]`.
"""

from typing import Generic, TypeAlias, TypeVar

from allhands_server.machine.fast_dataclass import record
from allhands_server.machine.values import (
    Begun,
    Compared,
    Entry,
    GivenUp,
    JobView,
    MemberReport,
    Progress,
    Reformed,
    Verdict,
)

R = TypeVar("R")


class Request(Generic[R]):
    """A question that is answered once: with an R, or a refusal."""

    __slots__ = ()


# ---------------------------------------------------------------- key-value


@record
class Set(Request[int]):
    """Answered with the revision."""

    job: str
    key: str
    value: bytes


@record
class Get(Request[Entry]):
    job: str
    key: str
    wait: bool = False


@record
class Wait(Request[None]):
    """Answered when all keys exist at once."""

    job: str
    keys: tuple[str, ...]


@record
class Add(Request[int]):
    """Answered with the sum."""

    job: str
    key: str
    amount: int


@record
class CompareSet(Request[Compared]):
    job: str
    key: str
    expected: bytes
    desired: bytes


@record
class Append(Request[int]):
    """Answered with the new length in bytes."""

    job: str
    key: str
    value: bytes


@record
class MultiSet(Request[int]):
    """Answered with the revision; of pairs with one key the last counts."""

    job: str
    pairs: tuple[tuple[str, bytes], ...]


@record
class MultiGet(Request[tuple[bytes, ...]]):
    job: str
    keys: tuple[str, ...]
    wait: bool = False


@record
class Delete(Request[bool]):
    """Answered with whether the key existed."""

    job: str
    key: str


@record
class ListKeys(Request[tuple[str, ...]]):
    job: str
    prefix: str = ""


@record
class Count(Request[int]):
    job: str


KeyRequest: TypeAlias = (
    Set | Get | Wait | Add | CompareSet | Append | MultiSet | MultiGet | Delete | ListKeys | Count
)

# ---------------------------------------------------------------- queues


@record
class QueuePush(Request[int]):
    """Answered with how many values wait in the queue now; 0: it has been popped already."""

    job: str
    key: str
    value: bytes


@record
class QueuePop(Request[bytes]):
    job: str
    key: str
    wait: bool = False


@record
class QueueLength(Request[int]):
    job: str
    key: str


QueueRequest: TypeAlias = QueuePush | QueuePop | QueueLength

# ---------------------------------------------------------------- other requests


@record
class Arrive(Request[int]):
    """Arrive at a barrier; answered with its generation when all participants have."""

    job: str
    name: str
    participant: str
    participants: tuple[str, ...]


@record
class AwaitVerdict(Request[Verdict | GivenUp]):
    """Ask, until the call's deadline, who is missing in it; `waiting_on` are ranks of the world.

    The answer comes when the call is due, and somewhat later where members are still being asked.
    """

    job: str
    member_id: str
    group: str
    sequence: int
    operation: str
    waiting_on: tuple[int, ...] = ()


@record
class Reform(Request[Reformed]):
    """Decide with all present members of a group; see coordinator.proto."""

    job: str
    member_id: str
    group: str
    kind: str
    flag: bool = False
    wanted: int = 0
    returned: int = 0
    computed: int = 0


@record
class Meet(Request[Verdict | None]):
    """Arrive at a monitored barrier: None when all members of the group have arrived.

    The verdict of the first who runs out of time is everybody's, also of those who come later.
    """

    job: str
    member_id: str
    group: str
    sequence: int


@record
class AbortJob(Request[int]):
    """Release the members of a job; answered with how many were told."""

    job: str
    by: str
    reason: str


@record
class DeleteJob(Request[int]):
    """Forget a job; with `force` also one that has members, who are expelled.

    Answered with how many these were.
    """

    job: str
    by: str
    force: bool = False


@record
class ReportExit(Request[bool]):
    """Tell how a process ended (-n: by signal n); answered with whether it is a known member."""

    job: str
    space: str
    pid: int
    born: str
    status: int


@record
class ListJobs(Request[tuple[JobView, ...]]):
    """Answered by name."""


@record
class DescribeJob(Request[JobView]):
    job: str


@record
class CollectReports(Request[tuple[MemberReport, ...]]):
    """Ask all members what they have recorded, `operations` of each group; answered by rank."""

    job: str
    operations: int


AnyRequest: TypeAlias = (
    KeyRequest
    | QueueRequest
    | Arrive
    | AwaitVerdict
    | Meet
    | Reform
    | AbortJob
    | DeleteJob
    | ReportExit
    | ListJobs
    | DescribeJob
    | CollectReports
)

# ---------------------------------------------------------------- what a session says


@record
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


@record
class Heartbeat:
    probe: int = 0
    progress: tuple[Progress, ...] = ()
    stack: str = ""
    sent: float = 0.0
    begun: tuple[Begun, ...] = ()


@record
class OpenGroup:
    group: str
    ranks: tuple[int, ...]


@record
class CloseGroup:
    group: str


@record
class LinkBroken:
    rank: int
    reason: str
    shares_memory: bool = False


@record
class LinkSilent:
    """Nothing has come from `rank` for so long, though it was pinged; or something has again."""

    rank: int
    seconds: float = 0.0
    is_over: bool = False


@record
class Leave:
    progress: tuple[Progress, ...] = ()
    error: str = ""
    traceback: str = ""
    aborts: bool = False
    report: bytes = b""


@record
class Inspected:
    """What a neighbour saw of the process of a member; see coordinator.proto."""

    member_id: str
    found: str
    stack: str = ""


@record
class Vouched:
    """A member's answer to a `Vouch`: it hears that rank over a link."""

    rank: int


@record
class Abort:
    group: str
    reason: str


@record
class GaveUp:
    group: str
    sequence: int
    reason: str


@record
class ReportPart:
    """A piece of what a member was asked for by a `Collect`."""

    number: int
    data: bytes
    is_last: bool


@record
class LastReport:
    """What a member had recorded when it heard of a failure."""

    report: bytes


Remark: TypeAlias = (
    Heartbeat
    | OpenGroup
    | CloseGroup
    | LinkBroken
    | LinkSilent
    | Leave
    | Inspected
    | Vouched
    | Abort
    | GaveUp
    | ReportPart
    | LastReport
)

# ---------------------------------------------------------------- events


@record
class Asked:
    """A request has come; its answer or refusal will carry `ticket`, which is used once.

    At `due` it is refused, saying what was missing; None: it may wait without end.
    """

    ticket: int
    request: AnyRequest
    due: float | None = None


@record
class Withdrawn:
    """Whoever asked does not want the answer any more."""

    ticket: int


@record
class Fresh:
    """Random values that nobody has seen; the machine itself draws none."""

    member_id: str
    incarnation: str
    secret: bytes


@record
class Joining:
    """A session, numbered by the caller, began with a Join."""

    session: int
    join: Join
    fresh: Fresh


@record
class Said:
    """A session said something after its Join."""

    session: int
    remark: Remark


@record
class SessionBroke:
    """The stream is over and nothing can be pushed to it; a Leave may have come before."""

    session: int


@record
class RefusedCaller:
    """Somebody wanted to begin a session and has not shown the token."""

    address: str
    why: str


@record
class Looked:
    """The answer to a `Look`: what the coordinator itself saw of a member's process."""

    job: str
    member_id: str
    found: str
    stack: str = ""


@record
class Acknowledged:
    """The answer to a `CheckConnection` where the member's host acknowledges all it was sent."""

    job: str
    member_id: str


@record
class Drain:
    """Take in nobody any more.

    With a reason the coordinator is shut down: sessions are told the reason, and joiners are
    refused for good. Without one they may try again: rank 0 hosts the next one at the same place.
    """

    reason: str = ""


@record
class Tick:
    """Time has passed, nothing else."""


Event: TypeAlias = (
    Asked
    | Withdrawn
    | Joining
    | Said
    | SessionBroke
    | RefusedCaller
    | Looked
    | Acknowledged
    | Drain
    | Tick
)
