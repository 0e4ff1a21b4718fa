"""Results of inspections that the machine has asked for, given to the worlds concerned."""

import contextlib

from allhands_server.machine.effects import Effect
from allhands_server.machine.events import ConnectionAcknowledged, ProcessInspected
from allhands_server.machine.jobs import Job, Jobs
from allhands_server.machine.refusals import Refused


def on_acknowledged(jobs: Jobs, event: ConnectionAcknowledged, now: float) -> None:
    """Note that a member's host acknowledges all data."""
    with contextlib.suppress(Refused):  # it is over, or gone
        world = jobs.get(event.job).world
        if world is not None:
            world.failure_detector.on_acknowledged(world.find_member(event.member_id), now)


def on_process_inspected(
    jobs: Jobs, event: ProcessInspected, now: float, touched: dict[Job, None]
) -> list[Effect]:
    """Note the state of a member's process; `touched` takes the job."""
    if (job := jobs.find(event.job)) is None:
        return []  # it is over
    touched[job] = None
    if job.world is None:
        return job.review_verdicts(now)
    effects = job.world.process_evidence.on_inspected(
        event.member_id, event.process_state, now, event.stack
    )
    return [*effects, *job.review_verdicts(now)]
