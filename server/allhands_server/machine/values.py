"""What events and effects carry: how things are, as the machine tells it."""

import enum
from dataclasses import dataclass

from allhands_server.machine.fast_dataclass import fast_dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a member is in one group; see coordinator.proto."""

    group: str
    sequence: int
    completed: int
    operation: str = ""
    elapsed: float = 0.0
    unanswered: tuple[int, ...] = ()


@fast_dataclass
class CallStarts:
    """When a member began calls of a group, by its own clock; see coordinator.proto."""

    group: str
    calls: tuple[tuple[int, float], ...]


@fast_dataclass
class Lateness:
    """How late a member began the calls of a group; see coordinator.proto."""

    group: str
    calls: int
    median: float
    worst: float
    last: int


@fast_dataclass
class MemberReport:
    """What a member has recorded, as it serialised that, or why there is nothing."""

    rank: int
    report: bytes
    absence: str = ""
    """Why it did not answer; a report beside this is what was kept of it."""


class Presence(enum.Enum):
    JOINED = "joined"
    LOST = "lost"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member, as it is when this is made; `last_heartbeat` is seconds ago."""

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
    data_port: int
    space: str = ""
    born: str = ""
    clock_offset: float | None = None
    lateness: tuple[Lateness, ...] = ()
    gone: float | None = None
    """Seconds since it was lost or left; None: it is there."""
    condition: "AbsentRank | None" = None
    """Of one that is silent though it is known to live: stalled, paused or unreachable."""


@dataclass(frozen=True, slots=True)
class GroupView:
    group: str
    ranks: tuple[int, ...]


@fast_dataclass
class Failure:
    """What failed in a world, so many seconds ago; `rank` -1: somebody outside aborted it."""

    rank: int
    state: str
    text: str
    seconds: float
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job; `members` by rank, `state` as in coordinator.proto."""

    job: str
    state: str
    epoch: int
    world_size: int
    members: tuple[MemberView, ...]
    groups: tuple[GroupView, ...]
    heartbeat_window: float
    keys: int
    incarnation: str
    failures: tuple[Failure, ...] = ()
    """The first one first; without those that the members have gone on from."""
    ended: float | None = None
    """Seconds since its last member was gone; None: it has not ended."""


class State(enum.StrEnum):
    """What keeps a rank from doing its part."""

    NEVER_JOINED = "never joined"
    LEFT = "left"
    DEAD = "dead"
    PAUSED = "paused"
    """Its process is stopped, or says nothing and nobody could look at it."""
    STALLED = "stalled"
    """Its process runs, and its heartbeats do not come: its interpreter is held up."""
    UNREACHABLE = "unreachable"
    """It is alive, and a peer or the coordinator cannot reach it."""
    ELSEWHERE = "elsewhere"
    """It is in another call."""
    BUSY = "busy"
    """It is alive, and in no call."""
    SLOW = "slow"
    """None of these: it is in this very call."""
    ABORTED = "aborted"
    """Of a job: somebody ended its calls on purpose."""


@dataclass(frozen=True, slots=True)
class AbsentRank:
    """A rank that a call waits for in vain, and what it does instead."""

    rank: int
    state: State
    text: str
    host: str = ""
    pid: int = 0
    sequence: int = 0
    operation: str = ""
    elapsed: float = 0.0
    group: str = ""
    exit_status: int | None = None
    signal: int | None = None
    stack: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who is absent in a call of a group; of no call in particular where all three are empty."""

    group: str
    sequence: int
    operation: str
    absent: tuple[AbsentRank, ...]
    text: str
    """One paragraph for people, the same for all who hear of it."""


@fast_dataclass
class CallCancellation:
    """A call that a member gave up on purpose, before its deadline."""

    group: str
    sequence: int
    rank: int
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class GroupChange:
    """What the members of a group have decided; see coordinator.proto."""

    flag: bool
    epoch: int
    group: str = ""
    members: tuple[MemberView, ...] = ()
    committed: int = 0


@fast_dataclass
class Entry:
    """What a key holds, and the job's revision when it last changed."""

    value: bytes
    revision: int


@fast_dataclass
class CompareSetResult:
    """How a compare-and-set went; `value` is what the key holds now."""

    swapped: bool
    exists: bool
    value: bytes
