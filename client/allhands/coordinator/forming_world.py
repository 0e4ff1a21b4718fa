"""Explanation of a world that was not complete in time: the ranks that never joined."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from allhands.coordinator.call_failed import CallFailed, StatusCode
from allhands.coordinator.endpoint import ChannelConfig
from allhands.coordinator.sections import name_ranks
from allhands.deadlines import format_timeout
from allhands.errors import AllhandsError, CollectiveTimeout, CoordinatorUnavailable
from allhands.verdicts import AbsentRank, Verdict
from allhands_proto.v1 import coordinator_pb2 as wire

if TYPE_CHECKING:
    from allhands_proto.v1.coordinator_pb2_grpc import CoordinatorAsyncStub

SIZE_ADVICE = (
    "set WORLD_SIZE on all ranks (in a Kubernetes Indexed Job to its number of completions), "
    "or pass world_size"
)

_GAVE_UP = "joined and gave up before"


async def explain_not_formed(
    stub: "CoordinatorAsyncStub",
    channel_config: ChannelConfig,
    request: wire.Join,
    timeout: float,
    refused_callers: Mapping[str, str],
) -> AllhandsError:
    """Return the CollectiveTimeout that names the missing ranks.

    Of a coordinator that does not answer: the CoordinatorUnavailable that names its addresses.
    """
    absent: tuple[AbsentRank, ...] = ()
    text = f"the world of job {request.job!r} was not complete within {format_timeout(timeout)}"
    try:
        jobs = await stub.ListJobs(
            wire.ListJobsRequest(), timeout=2.0, metadata=channel_config.metadata
        )
    except CallFailed as error:
        if error.status in (StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED):
            at = f"the coordinator at {channel_config.target}"
            return CoordinatorUnavailable(f"{text}; {at} does not answer: {error.details()}")
        return CollectiveTimeout(f"{text}; {error}", op="init_process_group", seq=0)
    for job in jobs.jobs:
        if job.job == request.job:
            present = {member.rank: member for member in job.members}
            size = job.world_size or request.world_size
            gave_up = [rank for rank in job.gave_up if rank < size]
            never = sorted({*range(size)}.difference(present, gave_up))
            absent = (
                *(AbsentRank(rank, "never joined", f"rank {rank} never joined") for rank in never),
                *(AbsentRank(rank, "left", f"rank {rank} {_GAVE_UP}") for rank in gave_up),
            )
            named = "; ".join(
                f"rank {rank} (host {one.host}, pid {one.pid})"
                for rank, one in sorted(present.items())
            )
            if size:
                if never:
                    text += f": never joined: {name_ranks(never)}"
                if gave_up:
                    text += f"{';' if never else ':'} {_GAVE_UP}: {name_ranks(gave_up)}"
                text += f" (of {size} ranks)"
            else:
                text += f": no rank said how many there are; {SIZE_ADVICE}"
            text += f"; there: {named}"
    if refused_callers:
        listed = ", ".join(f"{where} ({why})" for where, why in refused_callers.items())
        text += (
            f"; refused by the coordinator: a process at {listed}: its ALLHANDS_TOKEN must be "
            "that of the coordinator"
        )
    others = sorted(job.job for job in jobs.jobs if job.job != request.job)
    if others:
        text += f"; other jobs at this coordinator: {', '.join(map(repr, others))}"
    found = Verdict("", 0, "init_process_group", absent, text)
    return CollectiveTimeout(
        text,
        op="init_process_group",
        seq=0,
        missing_ranks=tuple(one.rank for one in absent),
        verdict=found,
    )
