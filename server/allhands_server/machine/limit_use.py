"""Use of the limits: how much of each is taken, and by which job the most."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import TypeAlias

from allhands_server.machine.fast_dataclass import fast_dataclass
from allhands_server.machine.jobs import Job, Jobs
from allhands_server.resource_limits import write_name

_Count: TypeAlias = Callable[[Job], int]
_COUNTS: Mapping[str, _Count] = {
    "job_bytes": lambda job: job.memory.nbytes,
    "job_keys": lambda job: len(job.table.records),
    "job_waiters": lambda job: job.waiters,
    "job_watches": lambda job: len(job.watches),
    "job_leases": lambda job: len(job.leases),
    "job_members": lambda job: 0 if job.world is None else job.world.count_members(),
    "job_groups": lambda job: 0 if job.world is None else len(job.world.groups),
}


@fast_dataclass
class LimitUse:
    """A limit, and the most that is used of it."""

    name: str
    most: int
    """0: not limited."""
    used: int | None
    """None: it is of each connection, and not counted here."""
    job: str = ""
    """Of which that is, if the limit is of a job."""


def list_limit_use(jobs: Jobs, kept_answers: int) -> list[LimitUse]:
    """Return all limits; `kept_answers` are bytes that are not of a job."""
    memory = jobs.signals.memory
    taken = memory.nbytes + jobs.signals.histories.nbytes + kept_answers
    totals = {"memory": taken, "jobs": len(jobs)}
    found = []
    for field in fields(memory.limits):
        most: int = getattr(memory.limits, field.name)
        job, used = "", totals.get(field.name)
        if field.name == "job_bytes":
            most = memory.job_most if memory.limits.memory or most else 0
        if (count := _COUNTS.get(field.name)) is not None:
            used, job = _find_largest(jobs, count)
        found.append(LimitUse(write_name(field.name), most, used, job))
    return found


def _find_largest(jobs: Iterable[Job], count: _Count) -> tuple[int, str]:
    """Return the largest count of a job, and the job; 0 and empty where there is none."""
    used, job = max(((count(one), one.name) for one in jobs), default=(0, ""))
    return used, job if used else ""
