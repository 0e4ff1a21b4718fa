"""Conversion between messages and the machine's values; decides nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from allhands_proto.status_codec import encode_failure, encode_group, encode_lateness, encode_waits
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.verdict_codec import encode_absent_rank, encode_cancellation, encode_verdict
from allhands_proto.verdicts import CallCancellation
from allhands_proto.versions import OWN, write_versions
from allhands_server.machine import effects, member_messages, requests, values
from allhands_server.rpc.condition_codec import encode_conditions
from allhands_server.rpc.world_codec import decode_ranks

_PRESENCE = {
    values.Presence.JOINED: wire.MEMBER_STATE_JOINED,
    values.Presence.LOST: wire.MEMBER_STATE_LOST,
    values.Presence.LEFT: wire.MEMBER_STATE_LEFT,
}


def decode_join(message: wire.Join, address: str) -> member_messages.Join:
    return member_messages.Join(
        job=message.job,
        rank=message.rank,
        world_size=message.world_size,
        host=message.host,
        pid=message.pid,
        address=address,
        heartbeat_window=message.heartbeat_window,
        label=message.label,
        hosts_coordinator=message.hosts_coordinator,
        memory=message.memory,
        data_port=message.data_port,
        elastic=message.elastic,
        max_members=message.max_members,
        pid_namespace=message.pid_namespace,
        start_ticks=message.start_ticks,
        exit_is_reported=message.exit_is_reported,
        stack_channel=message.stack_channel,
    )


def decode_resume(message: wire.Resume) -> member_messages.Resume:
    return member_messages.Resume(
        message.job, message.incarnation, message.member_id, message.proof
    )


def decode_member_message(message: wire.SessionRequest) -> member_messages.MemberMessage | None:
    """Convert a member's message; None: unknown to this version, or a second Join."""
    match message.WhichOneof("request"):
        case "heartbeat":
            beat = message.heartbeat
            return member_messages.Heartbeat(
                probe=beat.probe,
                progress=tuple(map(decode_progress, beat.progress)),
                stack=beat.stack,
                sent_at=beat.sent_at,
                call_starts=tuple(map(_decode_call_starts, beat.call_starts)),
                section=beat.section,
                section_elapsed=beat.section_elapsed,
            )
        case "open_group":
            return member_messages.OpenGroup(
                message.open_group.group, decode_ranks(message.open_group)
            )
        case "close_group":
            return member_messages.CloseGroup(message.close_group.group)
        case "link_broken":
            broken = message.link_broken
            return member_messages.LinkBroken(broken.rank, broken.reason, broken.shares_memory)
        case "link_silent":
            silent = message.link_silent
            return member_messages.LinkSilent(silent.rank, silent.seconds, silent.is_over)
        case "leave":
            leave = message.leave
            return member_messages.Leave(
                tuple(map(decode_progress, leave.progress)),
                leave.error,
                leave.traceback,
                leave.aborts,
                leave.report,
            )
        case "peer_inspected":
            told = message.peer_inspected
            return member_messages.PeerInspected(told.member_id, told.process_state, told.stack)
        case "indirect_ack":
            return member_messages.IndirectAck(message.indirect_ack.rank)
        case "abort":
            return member_messages.Abort(message.abort.group, message.abort.reason)
        case "cancel_call":
            given = message.cancel_call
            return member_messages.CancelCall(given.group, given.sequence, given.reason)
        case "last_report":
            return member_messages.LastReport(message.last_report.report)
        case "report_part":
            part = message.report_part
            return member_messages.ReportPart(part.id, part.data, part.is_last)
        case _:
            return None


def _decode_call_starts(message: wire.CallStarts) -> values.CallStarts:
    return values.CallStarts(
        message.group, tuple(zip(message.sequences, message.times, strict=False))
    )


def decode_progress(message: wire.Progress) -> values.Progress:
    return values.Progress(
        group=message.group,
        sequence=message.sequence,
        completed=message.completed,
        operation=message.operation,
        elapsed=message.elapsed,
        unanswered_pings=tuple(message.unanswered_pings),
        nbytes=message.nbytes,
        seconds=message.seconds,
    )


def encode_progress(one: values.Progress) -> wire.Progress:
    return wire.Progress(
        group=one.group,
        sequence=one.sequence,
        completed=one.completed,
        operation=one.operation,
        elapsed=one.elapsed,
    )


def encode_notification(notification: effects.Notification) -> wire.SessionEvent:
    match notification:
        case effects.Joined():
            return wire.SessionEvent(joined=_encode_joined(notification))
        case effects.WorldFormed(epoch, size, members, group):
            formed = wire.WorldFormed(
                epoch=epoch, world_size=size, members=map(encode_member, members), group=group
            )
            return wire.SessionEvent(world_formed=formed)
        case effects.CallerRefused(address, why):
            return wire.SessionEvent(caller_refused=wire.CallerRefused(address=address, reason=why))
        case effects.Newcomers(count):
            return wire.SessionEvent(newcomers=wire.Newcomers(count=count))
        case effects.MemberLost():
            return wire.SessionEvent(member_lost=_encode_lost(notification))
        case effects.MemberLeft():
            return wire.SessionEvent(member_left=_encode_left(notification))
        case effects.MembersLeft(gone):
            return wire.SessionEvent(members_left=_encode_departures(gone))
        case effects.Probe(number, stack):
            return wire.SessionEvent(probe=wire.Probe(probe=number, stack=stack))
        case effects.Draining(reason):
            return wire.SessionEvent(draining=wire.Draining(reason=reason))
        case effects.LeaveAccepted():
            return wire.SessionEvent(leave_accepted=wire.LeaveAccepted())
        case effects.Resumed(epoch, received):
            resumed = wire.Resumed(epoch=epoch, received=received)
            write_versions(resumed)
            return wire.SessionEvent(resumed=resumed)
        case effects.Received(number):
            return wire.SessionEvent(received=wire.Received(number=number))
        case effects.InspectPeer(member_id, pid, born, channel):
            asked = wire.InspectPeer(
                member_id=member_id, pid=pid, start_ticks=born, stack_channel=channel
            )
            return wire.SessionEvent(inspect_peer=asked)
        case effects.IndirectProbe(rank):
            return wire.SessionEvent(indirect_probe=wire.IndirectProbe(rank=rank))
        case effects.Conditions():
            return wire.SessionEvent(conditions=encode_conditions(notification))
        case effects.BrokenLinks(found, pairs):
            ranks = [rank for pair in pairs for rank in pair]
            return wire.SessionEvent(
                broken_links=wire.BrokenLinks(verdict=encode_verdict(found), ranks=ranks)
            )
        case effects.SilentLinks(found, pairs, is_over):
            ranks = [rank for pair in pairs for rank in pair]
            silent = wire.SilentLinks(verdict=encode_verdict(found), ranks=ranks, is_over=is_over)
            return wire.SessionEvent(silent_links=silent)
        case effects.Aborted(group, by, reason):
            return wire.SessionEvent(aborted=wire.Aborted(group=group, by=by, reason=reason))
        case effects.CallCancelled(group, sequence, rank, by, reason):
            return wire.SessionEvent(
                call_cancelled=encode_cancellation(
                    group, sequence, CallCancellation(rank, by, reason)
                )
            )
        case effects.CollectReport(number, operations, nbytes):
            collect = wire.CollectReport(id=number, operations=operations, nbytes=nbytes)
            return wire.SessionEvent(collect_report=collect)


def _encode_lost(lost: effects.MemberLost) -> wire.MemberLost:
    return wire.MemberLost(
        rank=lost.rank,
        host=lost.host,
        pid=lost.pid,
        reason=lost.reason,
        epoch=lost.epoch,
        verdict=encode_verdict(lost.verdict),
    )


def _encode_left(left: effects.MemberLeft) -> wire.MemberLeft:
    return wire.MemberLeft(
        rank=left.rank,
        host=left.host,
        pid=left.pid,
        progress=map(encode_progress, left.progress),
        error=left.error,
        epoch=left.epoch,
        traceback=left.traceback,
        aborts=left.aborts,
    )


def _encode_departures(gone: Sequence[effects.MemberLeft]) -> wire.MembersLeft:
    ranks: dict[effects.MemberLeft, list[int]] = {}
    for left in gone:
        # How far a call had come matters, not for how long it had lasted.
        done = tuple(
            values.Progress(one.group, one.sequence, one.completed) for one in left.progress
        )
        alike = replace(left, rank=0, host="", pid=0, epoch=0, progress=done)
        ranks.setdefault(alike, []).append(left.rank)
    return wire.MembersLeft(
        left=[
            wire.LeftRanks(
                ranks=those,
                progress=map(encode_progress, alike.progress),
                error=alike.error,
                traceback=alike.traceback,
                aborts=alike.aborts,
            )
            for alike, those in ranks.items()
        ],
        epoch=gone[-1].epoch,
    )


def _encode_joined(joined: effects.Joined) -> wire.Joined:
    return wire.Joined(
        member_id=joined.member_id,
        rank=joined.rank,
        world_size=joined.world_size,
        incarnation=joined.incarnation,
        secret=joined.secret,
        heartbeat_window=joined.heartbeat_window,
        heartbeat_interval=joined.heartbeat_interval,
        address=joined.address,
        report_nbytes=joined.report_nbytes,
        is_durable=joined.is_durable,
        takes_resume=True,
        takes_spans=True,
        min_version=OWN.oldest,
        max_version=OWN.newest,
    )


def encode_member(view: values.MemberView) -> wire.Member:
    return wire.Member(
        member_id=view.member_id,
        rank=view.rank,
        host=view.host,
        pid=view.pid,
        address=view.address,
        label=view.label,
        hosts_coordinator=view.hosts_coordinator,
        memory=view.memory,
        last_heartbeat=view.last_heartbeat,
        progress=map(encode_progress, view.progress),
        state=_PRESENCE[view.presence],
        reason=view.reason,
        data_port=view.data_port,
        pid_namespace=view.pid_namespace,
        start_ticks=view.start_ticks,
        clock_offset=view.clock_offset or 0.0,
        has_clock_offset=view.clock_offset is not None,
        lateness=map(encode_lateness, view.lateness),
        gone=view.gone,
        condition=None if view.condition is None else encode_absent_rank(view.condition),
        section=view.section,
        section_elapsed=view.section_elapsed,
    )


def encode_token(token: values.TokenView) -> wire.TokenDescription:
    return wire.TokenDescription(
        id=token.id,
        job=token.job,
        verbs=token.verbs,
        expires_at=token.expires_at,
        max_joins=token.max_joins,
        joins=token.joins,
    )


def encode_member_report(one: values.MemberReport) -> wire.MemberReport:
    return wire.MemberReport(rank=one.rank, report=one.report, missing_reason=one.missing_reason)


def encode_job(view: values.JobView) -> wire.Job:
    return wire.Job(
        job=view.job,
        state=view.state,
        epoch=view.epoch,
        world_size=view.world_size,
        members=map(encode_member, view.members),
        groups=map(encode_group, view.groups),
        heartbeat_window=view.heartbeat_window,
        keys=view.keys,
        incarnation=view.incarnation,
        failures=map(encode_failure, view.failures),
        ended=view.ended,
        waits=map(encode_waits, view.waits),
        gave_up=view.gave_up,
        clock=view.clock,
    )


def decode_group_change(message: wire.GroupChangeRequest) -> requests.ChangeGroup:
    return requests.ChangeGroup(
        job=message.job,
        member_id=message.member_id,
        group=message.group,
        kind=message.kind,
        flag=message.flag,
        wanted=message.wanted,
        returned=message.returned,
        computed=message.computed,
        number=message.number,
    )


def encode_group_change(found: values.GroupChange) -> wire.GroupChange:
    return wire.GroupChange(
        flag=found.flag,
        epoch=found.epoch,
        group=found.group,
        members=map(encode_member, found.members),
        committed=found.committed,
    )


def encode_events(events: Iterable[values.JobEvent], clock_offset: float) -> wire.ListEventsReply:
    """Encode events; the offset is added to their times for the wall clock's."""
    reply = wire.ListEventsReply()
    for one in events:
        reply.events.add(
            number=one.number,
            time=one.at + clock_offset,
            kind=one.kind,
            text=one.text,
            rank=one.rank,
            state=one.state,
            epoch=one.epoch,
            by=one.by,
        )
    return reply
