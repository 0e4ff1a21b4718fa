"""What events and effects carry: how things are, as the machine tells it."""

import enum
from dataclasses import dataclass

from allhands_server.machine.record import record


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a member is in one group; see coordinator.proto."""

    group: str
    sequence: int
    completed: int
    operation: str = ""
    elapsed: float = 0.0


@record
class Begun:
    """When a member began calls of a group, by its own clock; see coordinator.proto."""

    group: str
    calls: tuple[tuple[int, float], ...]


@record
class Lateness:
    """How late a member began the calls of a group; see coordinator.proto."""

    group: str
    calls: int
    median: float
    worst: float
    last: int


@record
class MemberReport:
    """What a member has recorded, as it serialised that, or why there is nothing."""

    rank: int
    report: bytes
    absence: str = ""


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
    clock_offset: float | None = None
    lateness: tuple[Lateness, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupView:
    group: str
    ranks: tuple[int, ...]


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


@dataclass(frozen=True, slots=True)
class AbsentRank:
    """A rank that a call waits for in vain, and what it does instead."""

    rank: int
    state: str
    text: str
    host: str = ""
    pid: int = 0
    sequence: int = 0
    operation: str = ""
    elapsed: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who is absent in a call of a group."""

    group: str
    sequence: int
    operation: str
    absent: tuple[AbsentRank, ...]


@record
class Entry:
    """What a key holds, and the job's revision when it last changed."""

    value: bytes
    revision: int


@record
class Compared:
    """How a compare-and-set went; `value` is what the key holds now."""

    swapped: bool
    exists: bool
    value: bytes
