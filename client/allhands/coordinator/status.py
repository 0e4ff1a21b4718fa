"""Status of a job at the coordinator: members, progress, groups."""

from dataclasses import dataclass

from allhands_proto.statuses import FailureStatus, GroupStatus, LatenessStatus, OperationStatus


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One worker of a job."""

    rank: int
    member_id: str
    host: str
    pid: int
    address: str
    """`host:port` where its peers reach it."""
    label: str
    state: str
    """`joined`, `lost` or `left`."""
    reason: str
    """Of being lost, or of having left."""
    last_heartbeat: float
    """Seconds ago."""
    operations: tuple[OperationStatus, ...]
    """One per group in which it has made a call."""
    clock_offset: float | None = None
    """What to add to its monotonic clock to get the coordinator's, in seconds; None: unknown."""
    lateness: tuple[LatenessStatus, ...] = ()
    """One per group where it is known."""
    gone: float | None = None
    """Seconds since it was lost or left; None: it is there."""
    condition: str = ""
    """`stalled`, `paused` or `unreachable`: silent towards the coordinator though it lives; ""."""
    condition_text: str = ""
    """The sentence on that."""

    def find_operation(self, group: str) -> OperationStatus | None:
        return next((one for one in self.operations if one.group == group), None)

    def find_lateness(self, group: str) -> LatenessStatus | None:
        return next((one for one in self.lateness if one.group == group), None)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One job. `str()` of it is the table that `allhands status` shows."""

    job: str
    state: str
    """`empty` (keys, no member), `forming`, `running`, `degraded` (members lost) or `ended`."""
    epoch: int
    world_size: int
    """0: not agreed yet."""
    members: tuple[MemberStatus, ...]
    """By rank; those of the last incarnation when the job has ended."""
    groups: tuple[GroupStatus, ...]
    heartbeat_window: float
    """Seconds of silence after which a member counts as lost."""
    keys: int
    """How many the job's store holds."""
    incarnation: str
    failures: tuple[FailureStatus, ...] = ()
    """The first failure first; without those that the members have gone on from."""
    ended: float | None = None
    """Seconds since its last member was gone; None: it has not ended."""

    def __str__(self) -> str:
        # Only who looks at the table pays for importing what draws it.
        from allhands.coordinator.tables import draw_job, render_plain

        return render_plain(draw_job(self))
