"""What the machine wants done: answers, pushes to sessions, lines for the operator."""

from typing import TypeAlias

from allhands_proto.values import AbsentRank, Verdict
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


@fast_dataclass
class WorldFormed:
    """One object goes to all members: a shell may translate it once."""

    epoch: int
    world_size: int
    members: tuple[MemberView, ...]
    group: str = ""


@fast_dataclass
class Newcomers:
    count: int


@fast_dataclass
class CallerRefused:
    """To the members of a world that is not complete: one of those who are missing, perhaps."""

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
class InspectPeer:
    """Look at the process of another member of the same host."""

    member_id: str
    pid: int
    start_ticks: str
    stack_channel: str = ""


@fast_dataclass
class BrokenLinks:
    """Members that are alive cannot reach one another."""

    verdict: Verdict
    pairs: tuple[tuple[int, int], ...]


@fast_dataclass
class SilentLinks:
    """Members that are alive do not answer one another, or do again."""

    verdict: Verdict
    pairs: tuple[tuple[int, int], ...]
    is_over: bool = False


@fast_dataclass
class IndirectProbe:
    """Say whether this member is heard over a link."""

    rank: int


@fast_dataclass
class Condition:
    """A member is silent though it is known to live, or, with `found` None, is heard again."""

    rank: int
    absent: AbsentRank | None
    seconds: float
    """For which it has been, or had been, silent."""


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
    """Report under this number what was recorded; one object goes to all members."""

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
    | Probe
    | Draining
    | LeaveAccepted
    | InspectPeer
    | BrokenLinks
    | SilentLinks
    | IndirectProbe
    | Condition
    | Aborted
    | CallCancelled
    | CollectReport
)


@fast_dataclass
class Answer:
    """`reply` is of the type that the request of this ticket names."""

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
    """End the session's stream, after what was pushed before; well, where `refusal` is None."""

    session: int
    refusal: Refusal | None = None


@fast_dataclass
class InspectProcess:
    """Look at the process of a member, on the coordinator's own host, and tell by a `Looked`."""

    job: str
    member_id: str
    pid: int
    start_ticks: str
    stack_channel: str = ""


@fast_dataclass
class CheckConnection:
    """See whether the host of a member acknowledges its session; if so, tell it."""

    job: str
    member_id: str
    session: int


@fast_dataclass
class OperatorLog:
    """A line for the operator's log."""

    text: str
    is_failure: bool = False
    """Whether something has failed that somebody may be looking for."""


@fast_dataclass
class JobEnded:
    """The last member of the job's world is gone."""

    job: str


@fast_dataclass
class Drained:
    """After a Drain: no world is left."""


Effect: TypeAlias = (
    Answer
    | Refuse
    | Push
    | EndSession
    | InspectProcess
    | CheckConnection
    | OperatorLog
    | JobEnded
    | Drained
)
