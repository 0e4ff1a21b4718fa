"""Classification of absent members, with a self-contained sentence for each."""

import signal
from collections.abc import Sequence
from dataclasses import replace

from allhands_proto.verdicts import AbsentRank, State, Verdict
from allhands_server.machine.formatting import join_names, name_ranks, quote
from allhands_server.machine.values import Progress
from allhands_server.machine.world.member import NEVER, Member

_LISTED = 8
_OVER = ("gone", "zombie")


def has_ended(sight: str) -> bool:
    """Whether a process in this state has ended."""
    return sight in _OVER


def explains_silence(sight: str) -> bool:
    """Whether a process in this state explains a silent member."""
    return sight in _OVER or sight == "stopped"


def judge_never_joined(rank: int) -> AbsentRank:
    return AbsentRank(rank, "never joined", f"rank {rank} never joined")


def judge_lost(member: Member, reason: str, now: float) -> AbsentRank:
    """Classify a lost member by evidence about the process."""
    if member.exit_status is not None:
        how = describe_exit(member.exit_status)
        left = ", without having left the job" if member.exit_status == 0 else ""
        return _judge_dead(member, f"{member} is dead: {how}{left}")
    if has_ended(member.process_state):
        return _judge_dead(
            member, f"{member} is dead: its process is gone, its exit status unknown"
        )
    if not member.is_broken:
        if member.process_state or max(member.acknowledged_at, member.peer_heard_at) > NEVER:
            return judge_silent(member, now)
        text = (
            f"{member} is unreachable: {reason}, and nothing shows that it lives: its host "
            "acknowledges nothing, and nobody there could look at its process"
        )
        return make_absent_rank(member, "unreachable", text, elapsed=now - member.heard_at)
    if member.process_state:
        text = (
            f"{member} is unreachable from the coordinator: {reason}, though its process lives"
            + (" (it is stopped)" if member.process_state == "stopped" else "")
        )
        return make_absent_rank(member, "unreachable", text)
    return _judge_dead(member, f"{member} is dead: {reason}; exit status unknown")


def describe_exit(status: int) -> str:
    """Describe an exit status in words."""
    if status >= 0:
        return f"it ended with exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:  # most real-time signals have no name
        return f"killed by signal {-status}"


def _judge_dead(member: Member, text: str) -> AbsentRank:
    status = member.exit_status
    return AbsentRank(
        rank=member.rank,
        state="dead",
        text=text,
        host=member.join.host,
        pid=member.join.pid,
        exit_status=status if status is not None and status >= 0 else None,
        signal=-status if status is not None and status < 0 else None,
    )


def judge_left(member: Member) -> AbsentRank:
    why = f" because of {quote(member.reason)}" if member.reason else ""
    return make_absent_rank(member, "left", f"{member} has left the job{why}")


def judge_silent(member: Member, now: float) -> AbsentRank:
    """Classify a silent member by evidence for life."""
    silence = now - member.heard_at
    doing = max(member.get_progress(now), key=lambda one: -one.elapsed, default=None)
    last = f"; it last said that it was {_describe_activity(doing)}" if doing is not None else ""
    if member.section:
        last += f", in section {quote(member.section)}"
    state: State = "stalled"
    if member.process_state == "stopped":
        state, why = "paused", "its process is stopped (SIGSTOP, or a debugger)"
    elif member.peer_heard_at > NEVER:
        state, why = "unreachable", "its peers hear it over links, the coordinator does not"
    elif member.is_broken and member.process_state == "running":
        state, why = "unreachable", "its session broke, though its process runs"
    elif member.process_state == "running":
        why = "its process runs, but something holds up its interpreter (or it is swapped out)"
    elif member.acknowledged_at > NEVER:
        why = "its host acknowledges what it is sent, but it does not answer: stopped, or held up"
    else:
        state = "paused"
        why = "it does not answer, and nobody on its host could look at its process"
    named = "unreachable from the coordinator" if state == "unreachable" else state
    text = f"{member} is {named}: {why}, its last heartbeat is {silence:.1f} s ago{last}"
    return make_absent_rank(member, state, text, doing, elapsed=silence, stack=member.stack)


def judge_occupied(member: Member, group: str, now: float) -> AbsentRank:
    """Classify an answering member outside the call."""
    progress = sorted(member.get_progress(now), key=lambda one: one.elapsed)
    inside = [one for one in progress if one.operation]
    if inside:
        text = f"{member} is elsewhere: {_describe_activity(inside[0], group)}"
        return make_absent_rank(member, "elsewhere", text, inside[0], stack=member.stack)
    busy = f"{member} is busy{_describe_section(member, now)}: alive, but "
    doing = next((one for one in progress if one.group == group), None)
    if doing is None and progress:
        text = f"{busy}it has not made this group (a group's ranks all give the same ranks and tag)"
        return make_absent_rank(member, "busy", text, stack=member.stack)
    if doing is None or not doing.sequence:
        text = f"{busy}it has made no call yet"
        return make_absent_rank(member, "busy", text, doing, stack=member.stack)
    return make_absent_rank(
        member, "busy", busy + _describe_activity(doing, group), doing, stack=member.stack
    )


def judge_unreachable(
    member: Member, others: Sequence[Member], reason: str, doing: Progress | None = None
) -> AbsentRank:
    named = join_names([str(one) for one in others], quoted=False)
    text = (
        f"{member} is unreachable for {named}: {reason}, "
        f"though the coordinator hears {'both' if len(others) == 1 else 'all of them'}"
    )
    return make_absent_rank(member, "unreachable", text, doing, stack=member.stack)


def judge_slow(member: Member, call: str, waiting: Sequence[int]) -> AbsentRank:
    text = (
        f"{member} is slow: it is in {call} and answers, but what "
        f"{name_ranks(waiting)} need{'s' if len(waiting) == 1 else ''} of it has not arrived"
    )
    return make_absent_rank(member, "slow", text, stack=member.stack)


def make_verdict(group: str, sequence: int, operation: str, found: Sequence[AbsentRank]) -> Verdict:
    """Make the verdict on a call."""
    call = name_call(operation, sequence)
    if not found:
        text = f"nobody is known to be missing in {call} of group {quote(group)}"
        return Verdict(group, sequence, operation, (), text)
    ranks = name_ranks([one.rank for one in found])
    said = "; ".join(one.text for one in found[:_LISTED])
    more = len(found) - _LISTED
    rest = f"; and {more:,} more" if more > 0 else ""
    text = f"{ranks} did not arrive in {call} of group {quote(group)}: {said}{rest}"
    return Verdict(group, sequence, operation, tuple(found), text)


def make_late_verdict(verdict: Verdict, seconds: float) -> Verdict:
    """Make the verdict on a failed call for a late rank."""
    text = (
        f"{verdict.text}; who came later came too late: the others had waited until their "
        f"deadline, and given it up {seconds:.1f} s ago"
    )
    return replace(verdict, text=text)


def make_world_verdict(found: Sequence[AbsentRank], text: str = "") -> Verdict:
    """Make the verdict on an event of the world, outside any call."""
    if text:
        return Verdict("", 0, "", tuple(found), text)
    said = "; ".join(one.text for one in found[:_LISTED])
    more = len(found) - _LISTED
    return Verdict("", 0, "", tuple(found), said + (f"; and {more:,} more" if more > 0 else ""))


def name_call(operation: str, sequence: int) -> str:
    return f"{operation or 'call'} #{sequence}"


def make_absent_rank(
    member: Member,
    state: State,
    text: str,
    doing: Progress | None = None,
    *,
    elapsed: float | None = None,
    stack: str = "",
) -> AbsentRank:
    since = doing.elapsed if doing else 0.0
    return AbsentRank(
        rank=member.rank,
        state=state,
        text=text,
        host=member.join.host,
        pid=member.join.pid,
        sequence=doing.sequence if doing else 0,
        operation=doing.operation if doing else "",
        elapsed=since if elapsed is None else elapsed,
        group=doing.group if doing else "",
        stack=stack,
        section=member.section,
    )


def _describe_section(member: Member, now: float) -> str:
    if not member.section:
        return ""
    return f" in section {quote(member.section)} for {member.get_section_elapsed(now):.1f} s"


def _describe_activity(one: Progress, group: str = "") -> str:
    where = "" if one.group == group else f" of group {quote(one.group)}"
    if one.operation:
        return f"in {name_call(one.operation, one.sequence)}{where} for {one.elapsed:.1f} s"
    return f"in no call for {one.elapsed:.1f} s, since #{one.sequence}{where}"
