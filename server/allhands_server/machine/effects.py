"""Effects, the output of the machine: answers, notifications, log lines, inspections."""

from typing import TypeAlias

from allhands_proto.verdicts import AbsentRank, Verdict
from allhands_server.machine.changes import Change
from allhands_server.machine.fast_dataclass import fast_dataclass
from allhands_server.machine.refusals import Refusal
from allhands_server.machine.values import MemberView, Progress


@fast_dataclass
class Joined:
    member_id: str
    rank: int
    world_size: int
    incarnation: str
    secret: bytes
    heartbeat_window: float
    heartbeat_interval: float
    address: str
    report_nbytes: int = 0
    """Of its reports at its end, at most."""
    is_durable: bool = False
    """Whether a restarted coordinator has the world again."""


@fast_dataclass
class WorldFormed:
    """All ranks are present; the same object goes to all members."""

    epoch: int
    world_size: int
    members: tuple[MemberView, ...]
    group: str = ""


@fast_dataclass
class Newcomers:
    count: int


@fast_dataclass
class CallerRefused:
    """A caller without the token was refused while the world is incomplete."""

    address: str
    reason: str


@fast_dataclass
class MemberLost:
    rank: int
    host: str
    pid: int
    reason: str
    epoch: int
    verdict: Verdict


@fast_dataclass
class MemberLeft:
    rank: int
    host: str
    pid: int
    progress: tuple[Progress, ...]
    error: str
    epoch: int
    traceback: str = ""
    aborts: bool = False


@fast_dataclass
class MembersLeft:
    """Several members have left, in order."""

    gone: tuple[MemberLeft, ...]


@fast_dataclass
class Probe:
    probe: int
    stack: bool = False


@fast_dataclass
class Draining:
    reason: str


@fast_dataclass
class LeaveAccepted:
    pass


@fast_dataclass
class Resumed:
    """The member has its session again; what it may have missed follows."""

    epoch: int
    received: int
    """Number of the last message that came from it; 0: none, or not known any more."""


@fast_dataclass
class Received:
    """All messages of the member up to this number have been dealt with, for good."""

    number: int


@fast_dataclass
class InspectPeer:
    """Ask a member to inspect the process of a neighbour on the same host."""

    member_id: str
    pid: int
    start_ticks: str
    stack_channel: str = ""


@fast_dataclass
class BrokenLinks:
    """Links between living members, broken for good."""

    verdict: Verdict
    pairs: tuple[tuple[int, int], ...]


@fast_dataclass
class SilentLinks:
    """Links between living members, silent or with data again."""

    verdict: Verdict
    pairs: tuple[tuple[int, int], ...]
    is_over: bool = False


@fast_dataclass
class IndirectProbe:
    """Ask for an IndirectAck if this rank is heard over a link."""

    rank: int


@fast_dataclass
class Condition:
    """A member is silent though known to live; `absent` None: heard again."""

    rank: int
    absent: AbsentRank | None
    seconds: float
    """For which it has been, or had been, silent."""


@fast_dataclass
class Conditions:
    """Conditions of several members; the same object goes to all members."""

    changes: tuple[Condition, ...]
    more: int
    """Number of those that come with the next message."""


@fast_dataclass
class Aborted:
    group: str
    by: str
    reason: str


@fast_dataclass
class CallCancelled:
    group: str
    sequence: int
    rank: int
    by: str
    reason: str


@fast_dataclass
class CollectReport:
    """Ask for a flight report under this number; the same object goes to all members."""

    number: int
    operations: int
    nbytes: int


Notification: TypeAlias = (
    Joined
    | WorldFormed
    | Newcomers
    | CallerRefused
    | MemberLost
    | MemberLeft
    | MembersLeft
    | Probe
    | Draining
    | LeaveAccepted
    | Resumed
    | Received
    | InspectPeer
    | BrokenLinks
    | SilentLinks
    | IndirectProbe
    | Conditions
    | Aborted
    | CallCancelled
    | CollectReport
)


@fast_dataclass
class Answer:
    """Answer to a request; `reply` has the type named by the request."""

    ticket: int
    reply: object


@fast_dataclass
class Refuse:
    ticket: int
    refusal: Refusal


@fast_dataclass
class Push:
    session: int
    notification: Notification


@fast_dataclass
class EndSession:
    """End the session's stream after earlier notifications; without error if `refusal` is None."""

    session: int
    refusal: Refusal | None = None


@fast_dataclass
class InspectProcess:
    """Inspect a member's process on the coordinator's host, for a `ProcessInspected`."""

    job: str
    member_id: str
    pid: int
    start_ticks: str
    stack_channel: str = ""


@fast_dataclass
class CheckConnection:
    """Check whether a member's host acknowledges the session's data."""

    job: str
    member_id: str
    session: int


@fast_dataclass
class OperatorLog:
    """A line for the operator's log."""

    text: str
    is_failure: bool = False
    """Whether something has failed that somebody may be looking for."""
    job: str = ""
    """The job that it is about; empty: none, or more than one."""


@fast_dataclass
class JobEnded:
    """The last member of the job's world has gone."""

    job: str


@fast_dataclass
class LeaseTimed:
    """A lease ends at `due` from now on, unless it is kept alive: no change of the log."""

    job: str
    lease: int
    due: float


@fast_dataclass
class Changed:
    """One commit for the log: the other effects of the event leave when it is durable."""

    changes: tuple[Change, ...]


@fast_dataclass
class Drained:
    """The drain is complete: no world is left."""


Effect: TypeAlias = (
    Answer
    | Refuse
    | Push
    | EndSession
    | InspectProcess
    | CheckConnection
    | OperatorLog
    | JobEnded
    | LeaseTimed
    | Changed
    | Drained
)
