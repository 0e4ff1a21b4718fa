"""Views of jobs, for whoever asks for their status."""

from allhands_server.machine import limits
from allhands_server.machine.jobs import Job
from allhands_server.machine.values import JobObservation, JobView


def describe_job(job: Job, now: float, waits_seconds: float = 0.0) -> JobView:
    """Return the state of a job at this moment, with waits of so many seconds; 0: without."""
    world = job.world
    if world is None:
        return JobView(
            job=job.name,
            state="empty",
            epoch=0,
            world_size=0,
            members=(),
            groups=(),
            heartbeat_window=limits.WINDOW_DEFAULT,
            keys=len(job.table.records),
            incarnation="",
            clock=now,
        )
    return JobView(
        job=job.name,
        state=world.state,
        epoch=world.epoch,
        world_size=world.size,
        members=world.call_times.describe_members(now),
        groups=world.groups.describe(),
        heartbeat_window=world.heartbeat_window,
        keys=len(job.table.records),
        incarnation=world.incarnation,
        failures=world.postmortem.list_failures(now),
        ended=None if (ended := world.postmortem.ended_at) is None else max(0.0, now - ended),
        waits=world.call_times.describe_waits(now, waits_seconds) if waits_seconds > 0 else (),
        gave_up=tuple(sorted(world.gave_up)),
        clock=now,
    )


def observe_job(job: Job, after: int, now: float) -> JobObservation:
    """Return the state of a job at this moment, with the events behind a number."""
    world = job.world
    return JobObservation(
        view=describe_job(job, now),
        operations=0 if world is None else world.count_operations(),
        operations_nbytes=0 if world is None else world.count_nbytes(),
        arrivals=() if world is None else world.call_times.list_arrivals(),
        events=job.events.list_after(after),
    )
