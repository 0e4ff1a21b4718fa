"""Statuses of a job's members and groups; `status_codec` has their form on the wire."""

from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """Progress of a member in one group at its last heartbeat."""

    group: str
    operation: str
    """The current call; empty outside any."""
    sequence: int
    """Number of the latest call begun; 0: none yet."""
    completed: int
    """Number of the latest call ended."""
    elapsed: float
    """Seconds in the operation, or since the last one ended."""


@dataclass(frozen=True, slots=True)
class LatenessStatus:
    """Lateness of a member in a group, against the earliest start of each call."""

    group: str
    calls: int
    """Number of calls measured: the latest that every member has reported."""
    median: float
    """Seconds."""
    worst: float
    """Seconds."""
    last: int
    """Number of calls that this member began last of all."""


@dataclass(frozen=True, slots=True)
class RankWaits:
    """Waits for a rank, and of a rank, in measured calls of a group."""

    rank: int
    last: int
    """Number of calls that it began last of all."""
    caused: float
    """Seconds that another rank waited for it in these, on average."""
    waited: float = 0.0
    """Seconds that it waited for other ranks to begin; 0 in a period, where it is not kept."""


@dataclass(frozen=True, slots=True)
class WaitPeriod:
    """Measured calls of a group in one length of time."""

    ago: float
    """Seconds since its beginning; of the first one, since the first call."""
    length: float
    """Seconds."""
    calls: int
    skew: float
    """Sum over the calls of the seconds from the first rank's start to the last one's."""
    worst: float
    """The largest of these."""
    late: tuple[RankWaits, ...]
    """Ranks that were last, those first for which the others waited most; the first few."""


@dataclass(frozen=True, slots=True)
class GroupWaits:
    """Waits of the ranks of a group for each other."""

    group: str
    calls: int
    """Measured calls of the whole run: all, or a sample where there are many."""
    ranks: tuple[RankWaits, ...]
    """Of the whole run, those first for which the others waited most."""
    periods: tuple[WaitPeriod, ...]
    """Oldest first."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A group of ranks; `ranks` are of the world, in the group's order."""

    group: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FailureStatus:
    """A failure in a job."""

    rank: int
    """-1: aborted from outside the job."""
    state: str
    """`aborted`, or the `State` of a rank: `dead`, `left`, `paused`, `unreachable`."""
    text: str
    """One sentence for people."""
    seconds: float
    """Ago."""
    traceback: str = ""
    """Of the error with which the rank left."""
