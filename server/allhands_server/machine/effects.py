"""What the machine wants done: answers, pushes to sessions, lines for the operator."""

from typing import TypeAlias

from allhands_server.machine.fast_dataclass import record
from allhands_server.machine.refusals import Refusal
from allhands_server.machine.values import AbsentRank, MemberView, Progress, Verdict


@record
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


@record
class WorldFormed:
    """One object goes to all members: a shell may translate it once."""

    epoch: int
    world_size: int
    members: tuple[MemberView, ...]
    group: str = ""


@record
class Newcomers:
    count: int


@record
class CallerRefused:
    """To the members of a world that is not complete: one of those who are missing, perhaps."""

    address: str
    why: str


@record
class MemberLost:
    rank: int
    host: str
    pid: int
    reason: str
    epoch: int
    verdict: Verdict


@record
class MemberLeft:
    rank: int
    host: str
    pid: int
    progress: tuple[Progress, ...]
    error: str
    epoch: int
    traceback: str = ""
    aborts: bool = False


@record
class Probe:
    probe: int
    stack: bool = False


@record
class Draining:
    reason: str


@record
class LeaveAccepted:
    pass


@record
class Inspect:
    """Look at the process of another member of the same host."""

    member_id: str
    pid: int
    born: str
    stack_channel: str = ""


@record
class Ruling:
    """Members that are alive cannot reach one another."""

    verdict: Verdict
    pairs: tuple[tuple[int, int], ...]


@record
class SilentLinks:
    """Members that are alive do not answer one another, or do again."""

    verdict: Verdict
    pairs: tuple[tuple[int, int], ...]
    is_over: bool = False


@record
class Vouch:
    """Say whether this member is heard over a link."""

    rank: int


@record
class Condition:
    """A member is silent though it is known to live, or, with `found` None, is heard again."""

    rank: int
    found: AbsentRank | None
    seconds: float
    """For which it has been, or had been, silent."""


@record
class Aborted:
    group: str
    by: str
    reason: str


@record
class CallGivenUp:
    group: str
    sequence: int
    rank: int
    by: str
    reason: str


@record
class Collect:
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
    | Inspect
    | Ruling
    | SilentLinks
    | Vouch
    | Condition
    | Aborted
    | CallGivenUp
    | Collect
)


@record
class Answer:
    """`reply` is of the type that the request of this ticket names."""

    ticket: int
    reply: object


@record
class Refuse:
    ticket: int
    refusal: Refusal


@record
class Push:
    session: int
    notification: Notification


@record
class End:
    """End the session's stream, after what was pushed before; well, where `refusal` is None."""

    session: int
    refusal: Refusal | None = None


@record
class Look:
    """Look at the process of a member, on the coordinator's own host, and tell by a `Looked`."""

    job: str
    member_id: str
    pid: int
    born: str
    stack_channel: str = ""


@record
class CheckConnection:
    """See whether the host of a member acknowledges its session; if so, tell it."""

    job: str
    member_id: str
    session: int


@record
class Report:
    """A line for the operator's log."""

    text: str
    of_failure: bool = False
    """Whether something has failed that somebody may be looking for."""


@record
class JobEnded:
    """The last member of the job's world is gone."""

    job: str


@record
class Drained:
    """After a Drain: no world is left."""


Effect: TypeAlias = (
    Answer | Refuse | Push | End | Look | CheckConnection | Report | JobEnded | Drained
)
