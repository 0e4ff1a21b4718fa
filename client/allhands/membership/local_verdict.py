"""What a rank can see of others by itself, where the coordinator cannot be asked.

Processes of its host it can look at; others may answer a ping with where they are.
"""

from collections.abc import Collection, Mapping, Sequence

from allhands.coordinator.session import Member
from allhands.verdicts import AbsentRank, State, Verdict
from allhands_proto import process
from allhands_proto.v1 import coordinator_pb2 as wire

_ALONE = "the coordinator could not be asked"
_OVER = ("gone", "zombie")


def of_call(
    group: str,
    sequence: int,
    operation: str,
    others: Sequence[Member],
    waiting_on: Collection[int],
    *,
    space: str,
    answers: Mapping[int, wire.Heartbeat],
    linked: Collection[int],
) -> Verdict:
    """Judge the other members of a call's group, or as many of them as were asked.

    This rank waits for those of `waiting_on`; `linked` are the ranks that links should reach.
    """
    judged = []
    for one in others:
        seen = process.look(one.pid, one.born) if one.space and one.space == space else ""
        told = _by_process(one, seen)
        if told is None and (answer := answers.get(one.rank)) is not None:
            told = _by_answer(one, answer, group, sequence)
        elif told is None:
            told = _by_silence(one, seen, one.rank in linked)
        if told is not None:
            judged.append(told)
    found = [one for one in judged if one.state != "slow"] or [
        one for one in judged if one.rank in waiting_on
    ]
    call = f"{operation or 'call'} #{sequence}"
    listed = "; ".join(told.text for told in found) or "nobody is known to be missing"
    text = f"{call} of group {group!r}: {listed} ({_ALONE})"
    return Verdict(group, sequence, operation, tuple(found), text)


def of_broken_link(one: Member, reason: str, space: str) -> Verdict:
    """Judge a member to which the link broke."""
    seen = process.look(one.pid, one.born) if one.space and one.space == space else ""
    told = _by_process(one, seen)
    if told is None:
        text = f"{one} is unreachable: {reason} ({_ALONE})"
        told = AbsentRank(one.rank, "unreachable", text, one.host, one.pid)
    return Verdict("", 0, "", (told,), told.text)


def of_host(one: Member) -> Verdict:
    """Judge the member that hosted the coordinator, which went away."""
    text = f"{one} is dead: it went away, and the coordinator that it hosted with it"
    told = AbsentRank(one.rank, "dead", text, one.host, one.pid)
    return Verdict("", 0, "", (told,), text)


def of_left(one: Member, error: str) -> Verdict:
    """Say that a member has left, as all others are told at once."""
    text = f"{one} left the job" + (f" because of {error}" if error else "")
    return Verdict("", 0, "", (AbsentRank(one.rank, "left", text, one.host, one.pid),), text)


def _by_process(one: Member, seen: str) -> AbsentRank | None:
    if seen in _OVER:
        text = f"{one} is dead: its process is gone, its exit status unknown"
        return AbsentRank(one.rank, "dead", text, one.host, one.pid)
    if seen == "stopped":
        text = f"{one} is paused: its process is stopped (SIGSTOP, or a debugger)"
        return AbsentRank(one.rank, "paused", text, one.host, one.pid)
    return None


def _by_silence(one: Member, seen: str, is_linked: bool) -> AbsentRank:
    state: State = "slow"
    text = f"{one} is slow: its part has not arrived"
    if seen == "running":
        state, text = "paused", f"{one} is paused: its process runs, but answers no ping"
    elif is_linked:
        state, text = "unreachable", f"{one} is unreachable: it answers no ping"
    return AbsentRank(one.rank, state, text, one.host, one.pid)


def _by_answer(one: Member, answer: wire.Heartbeat, group: str, sequence: int) -> AbsentRank | None:
    state: State
    inside = [at for at in answer.progress if at.operation]
    here = next((at for at in answer.progress if at.group == group), None)
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
        state, text = "busy", "is busy: alive, but in no call"
        if doing is not None and doing.sequence:
            text += f" for {doing.elapsed:.1f} s, since #{doing.sequence}"
    return AbsentRank(
        rank=one.rank,
        state=state,
        text=f"{one} {text}",
        host=one.host,
        pid=one.pid,
        elapsed=doing.elapsed if doing is not None else 0.0,
        operation=doing.operation if doing is not None else "",
        sequence=doing.sequence if doing is not None else 0,
        group=doing.group if doing is not None else "",
        stack=answer.stack,
    )
