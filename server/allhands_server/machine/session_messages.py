"""Messages of members over their sessions: what each does to job and world."""

from allhands_server.machine.effects import Effect
from allhands_server.machine.formatting import escape
from allhands_server.machine.jobs import Job
from allhands_server.machine.limits import LONGEST_STACK, check_name
from allhands_server.machine.member_messages import (
    Abort,
    CancelCall,
    CloseGroup,
    Heartbeat,
    IndirectAck,
    LastReport,
    Leave,
    LinkBroken,
    LinkSilent,
    MemberMessage,
    OpenGroup,
    PeerInspected,
    ReportPart,
)
from allhands_server.machine.world.member import Member
from allhands_server.machine.world.world import World


def take_message(
    job: Job, world: World, member: Member, message: MemberMessage, now: float
) -> list[Effect]:
    """Return the effects of a message, which is a sign of life as well."""
    probe = message.probe if isinstance(message, Heartbeat) else 0
    world.on_heard(member, now, probe=probe)
    return _apply_message(job, world, member, message, now)


def _apply_message(
    job: Job, world: World, member: Member, message: MemberMessage, now: float
) -> list[Effect]:
    """Return the effects of a member's message."""
    match message:
        case Heartbeat(_, progress, stack):
            member.update_progress(progress, now)
            member.counts_first_progress = member.counts_first_progress or bool(progress)
            member.update_section(message.section, message.section_elapsed, now)
            if stack:
                member.stack = escape(stack)[-LONGEST_STACK:]
            world.call_times.add_heartbeat(member, message, now)
            return []
        case LastReport(report):
            world.postmortem.keep_report(member, report)
            return []
        case ReportPart():
            return world.reports.add_part(member, message)
        case OpenGroup(group, ranks):
            check_name("the name of the group", group)
            world.groups.check_room(group, job.memory.limits.job_groups, job.name)
            world.open_group(member, group, ranks)
            if job.verdicts is None or job.group_changes is None:
                return []
            # A change that was asked for at once may have come before this, on its own stream.
            return [
                *job.verdicts.on_group_opened(group),
                *job.group_changes.reconsider(now),
            ]
        case CloseGroup(group):
            world.close_group(member, group)
            return []
        case LinkBroken(rank, reason, shares_memory):
            return world.on_link_broken(rank, member, reason, shares_memory, now)
        case LinkSilent(rank, seconds, is_over):
            if is_over:
                return world.silent_links.on_recovery(member, rank, now)
            return world.silent_links.on_silence(member, rank, seconds, now)
        case Leave():
            return world.leave(member, message, now)
        case PeerInspected(member_id, found, stack):
            return world.process_evidence.on_inspected(member_id, found, now, stack)
        case IndirectAck(rank):
            if (suspect := world.present.get(rank)) is not None:
                world.failure_detector.on_indirect_ack(suspect, now)
            return []
        case Abort(group, reason):
            return world.abort(group, str(member), reason, now, but=member)
        case CancelCall(group, sequence, reason):
            if job.verdicts is None:
                return []
            return job.verdicts.cancel_call(member, group, sequence, reason, now)
