"""Measurements of the machine's state, taken when somebody asks, for metrics.

Of each job a few numbers, summed over its members; of a bounded number of jobs.
"""

from collections import Counter
from collections.abc import Mapping

from allhands_server.machine.fast_dataclass import fast_dataclass
from allhands_server.machine.jobs import Job, Jobs
from allhands_server.machine.world.world import World

MOST_JOBS = 100
"""Jobs that are measured one by one: those with members first, then the latest."""


@fast_dataclass
class JobMeasurement:
    """Numbers of one job."""

    job: str
    state: str
    epoch: int
    world_size: int
    members: int
    newcomers: int
    silent_members: int
    """Known to live, and announced as silent."""
    groups: int
    keys: int
    nbytes: int
    """Of keys, queues, leases and waiting calls."""
    leases: int
    watches: int
    waiting_calls: int
    operations: int
    """Calls that ended well, each counted on each of its ranks."""
    operations_nbytes: int
    """Of the arrays of calls and messages that ended well, counted likewise."""
    operations_seconds: float
    """That those took."""
    members_in_operations: int
    longest_operation: float
    """Seconds for which a member has been in its call."""
    oldest_heartbeat: float
    """Seconds."""
    skew: tuple[float, float] | None
    """Median and maximum over the latest calls, seconds from the first rank to the last."""


@fast_dataclass
class Measurements:
    """Numbers of all jobs, and counts since the machine began."""

    jobs: tuple[JobMeasurement, ...]
    """At most MOST_JOBS."""
    job_states: Mapping[str, int]
    """Number of jobs in each state."""
    sessions: int
    tokens: int
    nbytes: int
    """Of all jobs' keys, queues, leases and waiting calls."""
    histories_nbytes: int
    answers_nbytes: int
    events_nbytes: int
    requests: dict[str, int]
    """By kind."""
    events: dict[str, int]
    """By kind."""
    lost: dict[str, int]
    """Members, by the state that explains the loss."""
    absent: dict[str, int]
    """Ranks absent from calls by their verdicts, by state."""


def measure_jobs(
    jobs: Jobs,
    now: float,
    *,
    sessions: int,
    tokens: int,
    answers_nbytes: int,
    requests: dict[str, int],
) -> Measurements:
    """Return the numbers of the jobs, with those that are counted elsewhere."""
    signals, counts = jobs.signals, jobs.signals.event_counts
    return Measurements(
        jobs=tuple(_measure_job(job, now) for job in _choose_jobs(jobs)),
        job_states=Counter(job.state for job in jobs),
        sessions=sessions,
        tokens=tokens,
        nbytes=signals.memory.nbytes,
        histories_nbytes=signals.histories.nbytes,
        answers_nbytes=answers_nbytes,
        events_nbytes=counts.nbytes,
        requests=requests,
        events=dict(counts.kinds),
        lost=dict(counts.lost),
        absent=dict(counts.verdicts),
    )


def _choose_jobs(jobs: Jobs) -> list[Job]:
    """Return the jobs with members, the latest first if there are many, then the others."""
    live = [job for job in jobs if job.is_live]
    others = [job for job in jobs if not job.is_live]
    chosen = [*reversed(live), *reversed(others)][:MOST_JOBS]
    return sorted(chosen, key=lambda job: job.name)


def _measure_job(job: Job, now: float) -> JobMeasurement:
    world = job.world
    in_operations, longest = (0, 0.0) if world is None else _measure_operations(world, now)
    present = [] if world is None else [*world.present.values()]
    return JobMeasurement(
        job=job.name,
        state=job.state,
        epoch=0 if world is None else world.epoch,
        world_size=0 if world is None else world.size,
        members=len(present),
        newcomers=0 if world is None else len(world.newcomers),
        silent_members=sum(one.condition is not None for one in present),
        groups=0 if world is None else len(world.groups),
        keys=len(job.table.records),
        nbytes=job.memory.nbytes,
        leases=len(job.leases),
        watches=len(job.watches),
        waiting_calls=job.waiters,
        operations=0 if world is None else world.count_operations(),
        operations_nbytes=0 if world is None else world.count_nbytes(),
        operations_seconds=0.0 if world is None else world.count_seconds(),
        members_in_operations=in_operations,
        longest_operation=longest,
        oldest_heartbeat=max((max(0.0, now - one.heard_at) for one in present), default=0.0),
        skew=None if world is None else world.call_times.measure_skew(),
    )


def _measure_operations(world: World, now: float) -> tuple[int, float]:
    """Return the number of members in operations, and the seconds of the longest of these."""
    found = [
        max(seconds) for one in world.present.values() if (seconds := one.list_operations(now))
    ]
    return len(found), max(found, default=0.0)
