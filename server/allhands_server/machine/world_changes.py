"""Changes of a complete world: members that come and go, groups, decisions, verdicts.

A world that is still forming has no changes: after a restart its workers join again.
"""

from typing import TypeAlias

from allhands_proto.verdicts import AbsentRank, Verdict
from allhands_server.machine.fast_dataclass import fast_dataclass
from allhands_server.machine.member_messages import Join
from allhands_server.machine.values import Progress


@fast_dataclass
class MemberRecord:
    """A member as it joined."""

    member_id: str
    rank: int
    join: Join


@fast_dataclass
class WorldCompleted:
    """All ranks have come: keys and queues are this world's from now on."""

    job: str
    incarnation: str
    secret: bytes
    heartbeat_window: float
    """Seconds, as the first member gave it; 0: the usual one."""
    epoch: int
    members: tuple[MemberRecord, ...]


@fast_dataclass
class MemberGone:
    """A member is lost, or has left."""

    job: str
    rank: int
    epoch: int
    """Of the world from now on."""
    is_lost: bool
    reason: str
    """Of the loss, or the error with which it left."""
    progress: tuple[Progress, ...]
    """The last that is known."""
    loss: AbsentRank | None
    traceback: str = ""
    aborts: bool = False
    """Whether it left so that all others are released."""


@fast_dataclass
class LossExplained:
    """More is known of a lost member."""

    job: str
    loss: AbsentRank


@fast_dataclass
class FailureNoted:
    """A failure was added to the world's record of failures."""

    job: str
    rank: int
    """-1: an abort from outside."""
    text: str
    """Empty: the loss of the member says it."""
    traceback: str = ""


@fast_dataclass
class CallsAborted:
    """The calls of a group were aborted; of all of the world if `group` is empty."""

    job: str
    group: str
    by: str
    reason: str


@fast_dataclass
class LinksAnnounced:
    """Links between living members count as broken for good."""

    job: str
    verdict: Verdict
    ranks: tuple[int, ...]
    """Pairs, one after the other."""


@fast_dataclass
class GroupOpened:
    job: str
    group: str
    ranks: tuple[int, ...]
    """Of the world, in the group's order; empty where the group is open already."""
    opener: int


@fast_dataclass
class GroupClosed:
    """A rank has closed a group."""

    job: str
    group: str
    rank: int


@fast_dataclass
class GroupDecided:
    """The members of a group have decided on it together."""

    job: str
    group: str
    epoch: int
    flag: bool
    committed: int
    next_group: str
    """The group that goes on; empty: an agreement on a flag."""
    ranks: tuple[int, ...]
    """Of that group, in its order."""
    newcomers: tuple[MemberRecord, ...]
    """Members of it that had waited for a place."""
    callers: tuple[int, ...]
    """Ranks that called."""
    numbers: tuple[int, ...]
    """Of their requests, in the order of `callers`."""


@fast_dataclass
class MonitoredBarrierPassed:
    job: str
    group: str
    sequence: int


@fast_dataclass
class VerdictGiven:
    """A call past its deadline has its verdict."""

    job: str
    is_barrier: bool
    verdict: Verdict


WorldChange: TypeAlias = (
    WorldCompleted
    | MemberGone
    | LossExplained
    | FailureNoted
    | CallsAborted
    | LinksAnnounced
    | GroupOpened
    | GroupClosed
    | GroupDecided
    | MonitoredBarrierPassed
    | VerdictGiven
)
