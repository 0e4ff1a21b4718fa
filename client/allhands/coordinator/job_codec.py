"""Codec of job status: from the wire's jobs and members to values."""

from allhands.coordinator.section_codec import read_section
from allhands.coordinator.status import JobStatus, MemberStatus
from allhands_proto.status_codec import (
    decode_failure,
    decode_group,
    decode_lateness,
    decode_operation,
)
from allhands_proto.v1 import coordinator_pb2 as wire

_MEMBER_STATES = {
    wire.MEMBER_STATE_JOINED: "joined",
    wire.MEMBER_STATE_LOST: "lost",
    wire.MEMBER_STATE_LEFT: "left",
}


def read_job(job: wire.Job) -> JobStatus:
    """Convert a job from its protobuf form."""
    return JobStatus(
        job=job.job,
        state=job.state,
        epoch=job.epoch,
        world_size=job.world_size,
        members=tuple(map(_read_member, job.members)),
        groups=tuple(map(decode_group, job.groups)),
        heartbeat_window=job.heartbeat_window,
        keys=job.keys,
        incarnation=job.incarnation,
        failures=tuple(map(decode_failure, job.failures)),
        ended=job.ended if job.HasField("ended") else None,
        clock=job.clock or None,
    )


def _read_member(member: wire.Member) -> MemberStatus:
    return MemberStatus(
        rank=member.rank,
        member_id=member.member_id,
        host=member.host,
        pid=member.pid,
        address=member.address,
        label=member.label,
        state=_MEMBER_STATES.get(member.state, "unknown"),
        reason=member.reason,
        last_heartbeat=member.last_heartbeat,
        operations=tuple(map(decode_operation, member.progress)),
        clock_offset=member.clock_offset if member.has_clock_offset else None,
        lateness=tuple(map(decode_lateness, member.lateness)),
        gone=member.gone if member.HasField("gone") else None,
        condition=member.condition.state,
        condition_text=member.condition.text,
        section=read_section(member),
    )
