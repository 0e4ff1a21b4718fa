"""Values in events and effects of the coordinator alone; for shared ones see allhands_proto."""

import enum
from typing import Literal, TypeAlias

from allhands_proto.quick_dataclass import dataclass
from allhands_proto.statuses import FailureStatus, GroupStatus, GroupWaits, LatenessStatus
from allhands_proto.verdicts import AbsentRank
from allhands_server.machine.fast_dataclass import fast_dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a member in one group; see coordinator.proto."""

    group: str
    sequence: int
    completed: int
    operation: str = ""
    elapsed: float = 0.0
    unanswered_pings: tuple[int, ...] = ()
    nbytes: int = 0
    seconds: float = 0.0


@fast_dataclass
class CallStarts:
    """Start times of a member's calls of a group, by the member's clock; see coordinator.proto."""

    group: str
    calls: tuple[tuple[int, float], ...]
    """Sequence numbers with seconds."""


@fast_dataclass
class CallArrival:
    """Arrival of a group's ranks at one call."""

    group: str
    sequence: int
    first: float
    """Start of the earliest rank, by the coordinator's monotonic clock, in seconds."""
    span: float
    """Seconds from there to the start of the last rank."""
    last: int
    """The rank that started last."""


@fast_dataclass
class BarrierResult:
    """A barrier that has opened, or was cancelled."""

    generation: int
    """Number of openings of the name; 0: it was cancelled."""
    arrived: tuple[str, ...]
    """Participants, sorted."""
    cancelled_by: str = ""
    reason: str = ""


@fast_dataclass
class BarrierView:
    """A barrier with somebody who waits; see WaitingBarrier in coordinator.proto."""

    name: str
    size: int
    participants: tuple[str, ...]
    arrived: tuple[str, ...]


@fast_dataclass
class TokenView:
    """A token without its secret; see coordinator.proto."""

    id: str
    job: str
    verbs: tuple[str, ...]
    expires_at: float
    max_joins: int
    joins: int


@fast_dataclass
class MemberReport:
    """Serialised flight report of a member, or the reason for the absence."""

    rank: int
    report: bytes
    missing_reason: str = ""
    """Not empty: the member did not answer; `report` is then an older one, if any."""


EventKind: TypeAlias = Literal[
    "joined",
    "left",
    "lost",
    "resumed",
    "formed",
    "regrouped",
    "silent",
    "heard",
    "links",
    "verdict",
    "aborted",
    "cancelled",
    "refused",
    "deleted",
    "ended",
    "restored",
]
"""Kinds of a job's events; see JobEvent in coordinator.proto."""


@fast_dataclass
class JobEvent:
    """An event of a job; see coordinator.proto."""

    number: int
    at: float
    """By the coordinator's monotonic clock."""
    kind: EventKind
    text: str
    """One sentence for people."""
    rank: int | None = None
    state: str = ""
    epoch: int = 0
    by: str = ""


class Presence(enum.Enum):
    """Whether a member is in the world."""

    JOINED = "joined"
    LOST = "lost"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class MemberView:
    """State of a member at one moment; times are in seconds ago."""

    member_id: str
    rank: int
    host: str
    pid: int
    address: str
    label: str
    hosts_coordinator: bool
    memory: str
    last_heartbeat: float
    progress: tuple[Progress, ...]
    presence: Presence
    reason: str
    """Of the loss, or of leaving."""
    data_port: int
    pid_namespace: str = ""
    start_ticks: str = ""
    clock_offset: float | None = None
    """Seconds to add to the member's clock for the coordinator's; None: unknown."""
    lateness: tuple[LatenessStatus, ...] = ()
    gone: float | None = None
    """Seconds since it was lost or left; None: present."""
    condition: AbsentRank | None = None
    """Stalled, paused or unreachable: silent, though known to live."""
    section: str = ""
    """Section of its program that it is in; empty: in none."""
    section_elapsed: float = 0.0


@dataclass(frozen=True, slots=True)
class JobView:
    """State of a job at one moment; `state` as in coordinator.proto."""

    job: str
    state: str
    epoch: int
    world_size: int
    members: tuple[MemberView, ...]
    """By rank."""
    groups: tuple[GroupStatus, ...]
    heartbeat_window: float
    """Seconds."""
    keys: int
    incarnation: str
    failures: tuple[FailureStatus, ...] = ()
    """In order of time, without those before the last group change of the world."""
    ended: float | None = None
    """Seconds since the last member was gone; None: not ended."""
    waits: tuple[GroupWaits, ...] = ()
    """Where it was asked for."""
    gave_up: tuple[int, ...] = ()
    """While the world forms: ranks that joined and went, by rank."""
    clock: float = 0.0
    """The moment, by the coordinator's clock."""


@fast_dataclass
class JobObservation:
    """A job at one moment, with what has happened to it."""

    view: JobView
    operations: int
    """Calls that ended well, each counted on each of its ranks."""
    operations_nbytes: int
    """Of the arrays of calls and messages that ended well, counted likewise."""
    arrivals: tuple[CallArrival, ...]
    """At the latest calls of the largest groups, by group and in order."""
    events: tuple[JobEvent, ...]
    """In order."""


@dataclass(frozen=True, slots=True)
class GroupChange:
    """Joint decision of a group's members; see coordinator.proto."""

    flag: bool
    epoch: int
    group: str = ""
    members: tuple[MemberView, ...] = ()
    committed: int = 0
