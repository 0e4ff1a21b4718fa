"""All jobs by name, each with keys, queues, barriers and a world."""

import itertools
from collections.abc import Iterator, Mapping

from allhands_server.machine import limits
from allhands_server.machine.changes import (
    BarrierOpened,
    Change,
    ChangeRecorder,
    ClientsForgotten,
    Completed,
    HistoryCompacted,
    JobCleared,
    JobForgotten,
    KeyDeleted,
    KeyPut,
    LeaseEnded,
    LeaseGranted,
    MemberKeysDeleted,
    QueuePushed,
    QueueTaken,
    RangeDeleted,
    RevisionReached,
    TokenCreated,
    TokenRevoked,
    TokenUsed,
    Undo,
    WorldOpened,
)
from allhands_server.machine.effects import Effect
from allhands_server.machine.events import Randomness
from allhands_server.machine.formatting import join_names
from allhands_server.machine.idle_jobs import IdleJobs
from allhands_server.machine.job_events import EventCounts, JobEvents
from allhands_server.machine.member_messages import Join
from allhands_server.machine.memory_use import JobMemory, MemoryUse, refuse_count
from allhands_server.machine.refusals import Refused, Status
from allhands_server.machine.store.barriers import Barriers
from allhands_server.machine.store.history import HistoryBudget
from allhands_server.machine.store.key_table import KeyTable
from allhands_server.machine.store.keys import Keys
from allhands_server.machine.store.leases import Leases
from allhands_server.machine.store.queues import Queues
from allhands_server.machine.store.watches import Watches
from allhands_server.machine.timers import TimerQueue
from allhands_server.machine.world.group_changes import GroupChanges
from allhands_server.machine.world.member import Member
from allhands_server.machine.world.resumption import watch_restored
from allhands_server.machine.world.verdicts import Verdicts
from allhands_server.machine.world.world import World
from allhands_server.machine.world_changes import (
    GroupClosed,
    MonitoredBarrierPassed,
    VerdictGiven,
    WorldChange,
    WorldCompleted,
)
from allhands_server.resource_limits import DEFAULT_LIMITS, ResourceLimits


class Signals:
    """Parts of jobs that the machine looks at after an event."""

    def __init__(self, limits: ResourceLimits) -> None:
        self.woken: dict[Watches, None] = {}
        """Watches with events since they were answered."""
        self.touched: dict[Job, None] = {}
        """Jobs that may be unused."""
        self.memory = MemoryUse(limits)
        """Of all jobs."""
        self.histories = HistoryBudget(self.memory.histories_most)
        """Of all jobs."""
        self.event_counts = EventCounts()
        self.told: dict[JobEvents, None] = {}
        """Event logs with new events that somebody waits for."""

    def note_events(self, events: JobEvents) -> None:
        """Note an event log with news for those who wait."""
        self.told[events] = None


class Job:
    """A name space for keys, queues and barriers, with a world of members.

    Keys and queues from before the first join belong to the first world. They outlast a world until
    the first join of the next.
    """

    def __init__(
        self,
        name: str,
        timers: TimerQueue,
        recorder: ChangeRecorder,
        signals: Signals,
        pid_namespace: str = "",
        revision: int = 0,
    ) -> None:
        self._timers = timers
        self._recorder = recorder
        self._pid_namespace = pid_namespace
        self.name = name
        self.memory = memory = JobMemory(name, signals.memory)
        self.events = JobEvents(name, signals.event_counts, signals.note_events)
        self.waiters = 0
        """Number of waiting requests."""
        self.table = KeyTable(name, signals.histories, memory, revision)
        self.keys = Keys(name, recorder, self.table, self)
        self.leases = Leases(name, recorder, timers, self.table, memory, self._note_unused)
        self.watches = Watches(self.table, timers, signals.woken, self._note_unused)
        self._signals = signals
        self.queues = Queues(name, recorder, memory)
        self.barriers = Barriers(name, recorder)
        self._has_had_world = False
        """Whether a world has been complete since the job was made or deleted."""
        self._was_complete = False
        """Whether the world that keys and queues belong to has been complete."""
        self.world: World | None = None
        self.verdicts: Verdicts | None = None
        self.group_changes: GroupChanges | None = None

    @property
    def state(self) -> str:
        return "empty" if self.world is None else self.world.state

    @property
    def is_live(self) -> bool:
        """Whether the job has members."""
        return self.world is not None and bool(self.world.present)

    @property
    def has_ended(self) -> bool:
        """Whether the job has had a world."""
        return self._has_had_world or (self.world is not None and self.world.epoch > 0)

    @property
    def holds_first_keys(self) -> bool:
        """Whether the job has keys for a world still to come."""
        has_past = self.world is not None or self._has_had_world
        return not has_past and self.has_keys

    @property
    def is_blank(self) -> bool:
        """Whether the job is empty and has never had more than deleted keys."""
        return not (self.has_ended or self.has_keys or self.barriers.has_opened)

    @property
    def has_keys(self) -> bool:
        """Whether there are keys, queues or leases."""
        return bool(self.table.records) or len(self.queues) > 0 or len(self.leases) > 0

    @property
    def is_waited_for(self) -> bool:
        parts = (self.keys, self.queues, self.barriers, self.watches, self.events)
        return any(part.is_waited_for for part in parts)

    def check_lease(self, lease: int) -> None:
        """Refuse an unknown lease."""
        self.leases.check_lease(lease)

    def check_member(self, member_id: str) -> None:
        """Refuse a member that is not present in a complete world."""
        if self.world is None:
            raise Refused(Status.NOT_FOUND, f"nobody has joined job {self.name}")
        if self.world.is_outside(member := self.world.find_member(member_id)):
            text = f"{member} is no member of a complete world of job {self.name} yet"
            raise Refused(Status.FAILED_PRECONDITION, text)

    def join(
        self, session: int, join: Join, randomness: Randomness, now: float
    ) -> tuple[World, Member, list[Effect]]:
        """Add a member to the current world, or to a new world after the end of the current.

        Raises:
            Refused: it may not join.
        """
        effects = [] if self.world is None else self.world.lose_broken_members(now)
        world = self.world
        if world is not None and self.is_live:
            self._check_members(world)
            member, joined = world.join(session, join, randomness.member_id, now)
            return world, member, [*effects, *joined]
        if self._was_complete:
            self._drop_store(has_world=True)
        following = self._make_world(
            randomness.incarnation,
            randomness.secret,
            join.heartbeat_window,
            0 if world is None else world.epoch,
        )
        member, joined = following.join(session, join, randomness.member_id, now)
        return following, member, [*effects, *joined]

    def _check_members(self, world: World) -> None:
        """Refuse one member more than a job may have."""
        most, count = self.memory.limits.job_members, world.count_members()
        if most and count >= most:
            remedy = "start fewer workers"
            raise refuse_count(self.name, count, "members", "job-members", remedy)

    def clear(self, why: str, now: float) -> list[Effect]:
        """Expel the members; drop keys, queues and the history of the worlds.

        Waiting requests stay.
        """
        effects = [] if self.world is None else self.world.disband(why, now)
        self._drop_store(has_world=False)
        return effects

    # ------------------------------------------------------------ durable state

    def apply(self, change: Change) -> None:
        """Make a change of this job."""
        match change:
            case KeyPut() | KeyDeleted() | RangeDeleted() | HistoryCompacted():
                self.table.apply(change)
            case MemberKeysDeleted():
                self.table.apply(change)
            case LeaseGranted() | LeaseEnded():
                self.leases.apply(change)
            case QueuePushed() | QueueTaken():
                self.queues.apply(change)
            case BarrierOpened():
                self.barriers.apply(change)
            case WorldOpened():
                self._has_had_world = self._was_complete = True
            case WorldCompleted(_, incarnation, secret, window, epoch):
                if self.world is None or self.world.incarnation != incarnation:
                    self._make_world(incarnation, secret, window, epoch)
                self._has_had_world = self._was_complete = True
                self._get_world().apply(change)
            case MonitoredBarrierPassed() | VerdictGiven():
                assert self.verdicts is not None
                self.verdicts.apply(change)
            case GroupClosed(_, group):
                self._get_world().apply(change)
                assert self.verdicts is not None
                self.verdicts.on_group_closed(group)
            case JobCleared(_, revision, has_world):
                self.leases.clear()
                self.world = self.verdicts = self.group_changes = None
                self.table.clear(revision)
                self.queues.clear()
                self.barriers.clear()
                self._has_had_world, self._was_complete = has_world, False
            case _:
                assert isinstance(change, WorldChange), f"{change} is no change of one job"
                self._get_world().apply(change)

    def make_undo(self, change: Change) -> Undo | None:
        """Return None: worlds go on whether the log has their opening or not."""
        return None

    def list_changes(self) -> Iterator[Change]:
        """Return changes that make the durable state of now; later changes do not matter."""
        return itertools.chain(
            (JobCleared(self.name, self.table.revision, self._has_had_world),),
            self.leases.list_changes(),
            self.table.list_changes(),
            self.queues.list_changes(),
            self.barriers.list_changes(),
            self._list_world_changes(),
        )

    def _list_world_changes(self) -> tuple[Change, ...]:
        """Return the changes of a complete world, of now."""
        if not self._was_complete:
            return ()
        if self.world is None or self.verdicts is None or self.world.is_forming:
            return (WorldOpened(self.name),)
        return (*self.world.list_changes(), *self.verdicts.list_changes())

    def finish_restore(self, now: float, remaining: Mapping[tuple[str, int], float]) -> None:
        """Begin the time of leases, and give members time to come back.

        Keys of members that are gone are deleted. Watches may come again as well. `remaining` is as
        in `Leases.start_all`.
        """
        self.leases.start_all(now, remaining)
        if not self.table.history.is_empty:
            self.watches.hold(now)
        if self.world is not None:
            watch_restored(self.world, now)
            text = f"the coordinator has this job from its log: {len(self.world.present)} members"
            self.events.add("restored", text, now, epoch=self.world.epoch)
        for member_id in self.table.bindings.list_members():
            if not self.has_member(member_id):
                self._delete_keys_of(member_id)

    def answer_present(self, now: float) -> list[Effect]:
        """Answer waiting requests for present keys and values, after changes were taken back."""
        self.leases.start_all(now, {})
        return [*self.keys.answer_present(), *self.queues.answer_present()]

    def _note_unused(self) -> None:
        self._signals.touched[self] = None

    def has_member(self, member_id: str) -> bool:
        """Return whether a member is present."""
        member = None if self.world is None else self.world.get_member(member_id)
        return member is not None and member.is_present

    def _delete_keys_of(self, member_id: str) -> None:
        """Delete the keys bound to a member that is gone."""
        if self.table.bindings.count_keys(member_id):
            change = MemberKeysDeleted(self.name, member_id, self.table.revision + 1)
            self._recorder.commit(change, self.table)

    def _commit(self, change: WorldChange) -> None:
        """Make a change of the world, which the log keeps once the world is complete."""
        if self._get_world().is_forming and not isinstance(change, WorldCompleted):
            self.apply(change)
        else:
            self._recorder.commit(change, self)

    def _get_world(self) -> World:
        assert self.world is not None
        return self.world

    def _make_world(
        self, incarnation: str, secret: bytes, heartbeat_window: float, epoch: int
    ) -> World:
        """Replace the world by an empty one."""
        self.world = world = World(
            self.name,
            incarnation,
            secret,
            heartbeat_window,
            epoch,
            self._timers,
            self._commit,
            self._pid_namespace,
            self._recorder.is_durable,
            self.events,
        )
        world.on_gone = self._delete_keys_of
        self.verdicts = Verdicts(world, self._timers)
        self.group_changes = GroupChanges(world)
        return world

    def _drop_store(self, has_world: bool) -> None:
        revision = self.table.revision + len(self.table.records)
        self._recorder.commit(JobCleared(self.name, revision, has_world), self)

    def review_verdicts(self, now: float) -> list[Effect]:
        """Return the verdicts made possible by new evidence."""
        return [] if self.verdicts is None else self.verdicts.review(now)


class Jobs:
    """The jobs worth keeping; see `drop_unused`."""

    def __init__(
        self,
        timers: TimerQueue,
        recorder: ChangeRecorder,
        pid_namespace: str = "",
        limits: ResourceLimits = DEFAULT_LIMITS,
    ) -> None:
        self._timers = timers
        self._recorder = recorder
        self._pid_namespace = pid_namespace
        self._jobs: dict[str, Job] = {}
        self.signals = Signals(limits)
        self._idle = IdleJobs()
        self._revision = 0  # the highest of those that are forgotten: no revision comes twice

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def open(self, name: str) -> Job:
        """Return the named job, created if missing.

        Raises:
            Refused: no job can have that name.
        """
        if (job := self._jobs.get(name)) is None:
            limits.check_job(name)
            self._check_count()
            job = self._make(name)
        return job

    def _check_count(self) -> None:
        """Refuse one job more than there may be, unless an idle one can make room."""
        most = self.signals.memory.limits.jobs
        if not most or len(self._jobs) < most:
            return
        if (oldest := self._idle.find_oldest()) is not None:
            self._idle.discard(oldest)
            self._forget(oldest)
        if len(self._jobs) >= most:
            raise Refused(
                Status.RESOURCE_EXHAUSTED,
                f"there are {len(self._jobs):,} jobs, the most that a coordinator has: delete some "
                "(`allhands delete JOB`), or raise it (`allhands serve --limit jobs=NUMBER`)",
            )

    def find(self, name: str) -> Job | None:
        """Return the named job; None: there is none."""
        return self._jobs.get(name)

    def get(self, name: str) -> Job:
        """Return the named job.

        Raises:
            Refused: there is none; the text lists those there are.
        """
        if (job := self._jobs.get(name)) is None:
            limits.check_job(name)
            known = join_names(sorted(self._jobs)) or "none"
            raise Refused(Status.NOT_FOUND, f"there is no job {name!r}; jobs here: {known}")
        return job

    def drop_unused(self, job: Job) -> None:
        """Drop the job if empty, and the oldest idle jobs above the limits."""
        self._idle.discard(job.name)
        if job.is_live or job.holds_first_keys or job.is_waited_for:
            return
        if job.is_blank:
            self._forget(job.name)
        elif job.has_ended or not job.has_keys:
            self._mark_idle(job)

    def _mark_idle(self, job: Job) -> None:
        """Count a job as idle, and drop the oldest idle jobs above the limits."""
        world = job.world
        members = 0 if world is None else len(world.members)
        self._idle.add(job.name, members, 0 if world is None else world.postmortem.nbytes)
        for oldest in self._idle.take_surplus():
            self._forget(oldest)
        for name in self._idle.take_reports():
            if (world := self._jobs[name].world) is not None:
                world.postmortem.drop_reports(world.members.values())

    def _forget(self, name: str) -> None:
        if (job := self._jobs.get(name)) is not None:
            change = JobForgotten(name)
            if job.is_blank:  # whoever reads the log forgets it as well
                self.apply(change)
            else:
                self._recorder.commit(change, self)

    def _make(self, name: str) -> Job:
        job = Job(
            name, self._timers, self._recorder, self.signals, self._pid_namespace, self._revision
        )
        self._jobs[name] = job
        return job

    # ------------------------------------------------------------ durable state

    def apply(self, change: Change) -> None:
        """Make a change, of the log or of this."""
        match change:
            case JobForgotten(name):
                if (job := self._jobs.pop(name, None)) is not None:
                    job.leases.clear()
                    job.table.history.close()
                    job.memory.close()
                    job.events.close()
                    self._revision = max(self._revision, job.table.revision)
            case RevisionReached(revision):
                self._revision = max(self._revision, revision)
            case TokenCreated() | TokenUsed() | TokenRevoked():
                raise AssertionError(f"{change} is no change of a job")
            case Completed() | ClientsForgotten():
                raise AssertionError(f"{change} is no change of the jobs")
            case _:
                job = self._jobs.get(change.job) or self._make(change.job)
                job.apply(change)

    def make_undo(self, change: Change) -> Undo | None:
        """Return None: a forgotten job stays forgotten."""
        return None

    def list_changes(self) -> Iterator[Change]:
        """Return changes that make the durable state of now; later changes do not matter."""
        jobs = [job.list_changes() for job in self._jobs.values()]
        return itertools.chain((RevisionReached(self._revision),), *jobs)
