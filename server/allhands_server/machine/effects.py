"""What the machine wants done: answers, pushes to sessions, lines for the operator."""

from dataclasses import dataclass
from typing import TypeAlias

from allhands_server.machine.refusals import Refusal
from allhands_server.machine.values import MemberView, Progress


@dataclass(frozen=True, slots=True)
class Joined:
    member_id: str
    rank: int
    world_size: int
    incarnation: str
    secret: bytes
    heartbeat_window: float
    heartbeat_interval: float
    address: str


@dataclass(frozen=True, slots=True)
class WorldFormed:
    """One object goes to all members: a shell may translate it once."""

    epoch: int
    world_size: int
    members: tuple[MemberView, ...]


@dataclass(frozen=True, slots=True)
class MemberLost:
    rank: int
    host: str
    pid: int
    reason: str
    epoch: int


@dataclass(frozen=True, slots=True)
class MemberLeft:
    rank: int
    host: str
    pid: int
    progress: tuple[Progress, ...]
    error: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Probe:
    probe: int


@dataclass(frozen=True, slots=True)
class Draining:
    reason: str


@dataclass(frozen=True, slots=True)
class LeaveAccepted:
    pass


Notification: TypeAlias = (
    Joined | WorldFormed | MemberLost | MemberLeft | Probe | Draining | LeaveAccepted
)


@dataclass(frozen=True, slots=True)
class Answer:
    """`reply` is of the type that the request of this ticket names."""

    ticket: int
    reply: object


@dataclass(frozen=True, slots=True)
class Refuse:
    ticket: int
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Push:
    session: int
    notification: Notification


@dataclass(frozen=True, slots=True)
class End:
    """End the session's stream, after what was pushed before; well, where `refusal` is None."""

    session: int
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """A line for the operator's log."""

    text: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The last member of the job's world is gone."""

    job: str


@dataclass(frozen=True, slots=True)
class Drained:
    """After a Drain: no world is left."""


Effect: TypeAlias = Answer | Refuse | Push | End | Report | JobEnded | Drained
