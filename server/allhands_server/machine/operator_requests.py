"""Requests of operators: abort and deletion of a job, shutdown of the coordinator."""

from allhands_server.machine.effects import Answer, Effect, OperatorLog
from allhands_server.machine.formatting import escape, quote
from allhands_server.machine.jobs import Job
from allhands_server.machine.refusals import Refusal, Refused, Status
from allhands_server.machine.requests import AbortJob, DeleteJob


def abort_job(job: Job, ticket: int, request: AbortJob, now: float) -> list[Effect]:
    """Release the members of a job.

    Raises:
        Refused: it has none.
    """
    world = job.world
    if world is None or not world.present:
        raise Refused(Status.FAILED_PRECONDITION, f"nobody is in job {job.name}")
    notified = len(world.present)
    if job.state == "forming":
        text = f"job {job.name} was aborted by {request.by}: {request.reason}"
        job.events.add("aborted", escape(text), now, by=escape(request.by))
        effects = world.dismiss(Refusal(Status.ABORTED, text))
    else:
        effects = world.abort("", request.by, request.reason, now)
    return [Answer(ticket, notified), *effects]


def delete_job(job: Job, ticket: int, request: DeleteJob, now: float) -> list[Effect]:
    """Delete what a job has, and expel its members if the request says so.

    Raises:
        Refused: it has members, which are to stay.
    """
    by = escape(request.by)
    inside = 0 if job.world is None else len(job.world.present)
    if inside and not request.force:
        members = f"{inside:,} member{'s are' if inside > 1 else ' is'}"
        raise Refused(
            Status.FAILED_PRECONDITION,
            f"{members} in job {job.name}: end them first, or abort it "
            f"(`allhands abort {job.name}`), or delete it by force (`--force`, force=True)",
        )
    effects = job.clear(f"job {job.name} was deleted by {by}", now)
    job.events.add("deleted", f"{inside:,} members were expelled", now, by=by)
    log = OperatorLog(f"job {job.name} was deleted by {quote(by)}", job=job.name)
    return [Answer(ticket, inside), *effects, log]


def refuse_shutting_down(reason: str) -> Refusal:
    """Return the refusal of those who join while the coordinator is shut down."""
    return Refusal(
        Status.FAILED_PRECONDITION,
        f"the coordinator is shutting down ({reason}) and takes in nobody: "
        "join again when it has been started anew, or name another one",
    )
