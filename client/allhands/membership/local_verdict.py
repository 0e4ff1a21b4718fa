"""Local verdicts: the state of peers as seen without the coordinator.

Processes of its host it can look at; others may answer a ping with where they are.
"""

from collections.abc import Collection, Mapping, Sequence

from allhands.coordinator.world_member import WorldMember
from allhands.verdicts import AbsentRank, State, Verdict
from allhands_proto import process
from allhands_proto.v1 import coordinator_pb2 as wire

_NO_COORDINATOR = "the coordinator could not be asked"
_DEAD_STATES = ("gone", "zombie")


def judge_call(
    group: str,
    sequence: int,
    operation: str,
    members: Sequence[WorldMember],
    waiting_on: Collection[int],
    *,
    pid_namespace: str,
    pongs: Mapping[int, wire.Heartbeat],
    linked_ranks: Collection[int],
) -> Verdict:
    """Return the verdict on a call from the pongs and processes of its members.

    This rank waits for those of `waiting_on`; `linked_ranks` are reached over links.
    """
    judged = []
    for one in members:
        seen = (
            process.inspect_process(one.pid, one.start_ticks)
            if one.pid_namespace and one.pid_namespace == pid_namespace
            else ""
        )
        told = _judge_by_process(one, seen)
        if told is None and (answer := pongs.get(one.rank)) is not None:
            told = _judge_by_pong(one, answer, group, sequence)
        elif told is None:
            told = _judge_by_silence(one, seen, one.rank in linked_ranks)
        if told is not None:
            judged.append(told)
    found = [one for one in judged if one.state != "slow"] or [
        one for one in judged if one.rank in waiting_on
    ]
    call = f"{operation or 'call'} #{sequence}"
    listed = "; ".join(told.text for told in found) or "nobody is known to be missing"
    text = f"{call} of group {group!r}: {listed} ({_NO_COORDINATOR})"
    return Verdict(group, sequence, operation, tuple(found), text)


def judge_broken_link(member: WorldMember, reason: str, pid_namespace: str) -> Verdict:
    """Judge a member to which the link broke."""
    seen = (
        process.inspect_process(member.pid, member.start_ticks)
        if member.pid_namespace and member.pid_namespace == pid_namespace
        else ""
    )
    told = _judge_by_process(member, seen)
    if told is None:
        text = f"{member} is unreachable: {reason} ({_NO_COORDINATOR})"
        told = AbsentRank(member.rank, "unreachable", text, member.host, member.pid)
    return Verdict("", 0, "", (told,), told.text)


def judge_lost_host(member: WorldMember) -> Verdict:
    """Return the verdict on the member whose embedded coordinator went away."""
    text = f"{member} is dead: it went away, and the coordinator that it hosted with it"
    told = AbsentRank(member.rank, "dead", text, member.host, member.pid)
    return Verdict("", 0, "", (told,), text)


def judge_left(member: WorldMember, error: str) -> Verdict:
    """Return the verdict on a member that left, with its error if any."""
    text = f"{member} left the job" + (f" because of {error}" if error else "")
    return Verdict(
        "", 0, "", (AbsentRank(member.rank, "left", text, member.host, member.pid),), text
    )


def _judge_by_process(member: WorldMember, process_state: str) -> AbsentRank | None:
    if process_state in _DEAD_STATES:
        text = f"{member} is dead: its process is gone, its exit status unknown"
        return AbsentRank(member.rank, "dead", text, member.host, member.pid)
    if process_state == "stopped":
        text = f"{member} is paused: its process is stopped (SIGSTOP, or a debugger)"
        return AbsentRank(member.rank, "paused", text, member.host, member.pid)
    return None


def _judge_by_silence(member: WorldMember, process_state: str, is_linked: bool) -> AbsentRank:
    state: State = "slow"
    text = f"{member} is slow: its part has not arrived"
    if process_state == "running":
        state, text = "paused", f"{member} is paused: its process runs, but answers no ping"
    elif is_linked:
        state, text = "unreachable", f"{member} is unreachable: it answers no ping"
    return AbsentRank(member.rank, state, text, member.host, member.pid)


def _judge_by_pong(
    member: WorldMember, pong: wire.Heartbeat, group: str, sequence: int
) -> AbsentRank | None:
    state: State
    inside = [at for at in pong.progress if at.operation]
    here = next((at for at in pong.progress if at.group == group), None)
    if here is not None and here.completed >= sequence:
        return None
    doing = min(inside, key=lambda at: at.elapsed, default=here)
    if here is not None and here.operation and here.sequence == sequence:
        state, text, doing = "slow", "is slow: it is in this call, and its part is missing", here
    elif inside:
        assert doing is not None
        state = "elsewhere"
        text = (
            f"is elsewhere: in {doing.operation} #{doing.sequence} of group {doing.group!r} "
            f"for {doing.elapsed:.1f} s"
        )
    else:
        state, text = "busy", f"is busy{_describe_section(pong)}: alive, but in no call"
        if doing is not None and doing.sequence:
            text += f" for {doing.elapsed:.1f} s, since #{doing.sequence}"
    return AbsentRank(
        rank=member.rank,
        state=state,
        text=f"{member} {text}",
        host=member.host,
        pid=member.pid,
        elapsed=doing.elapsed if doing is not None else 0.0,
        operation=doing.operation if doing is not None else "",
        sequence=doing.sequence if doing is not None else 0,
        group=doing.group if doing is not None else "",
        stack=pong.stack,
        section=pong.section,
    )


def _describe_section(pong: wire.Heartbeat) -> str:
    return f" in section {pong.section!r} for {pong.section_elapsed:.1f} s" if pong.section else ""
