"""Who is to blame when a call does not end: one verdict on each call, the same for all callers.

A caller asks when it has been blocked for a while. Shortly before its deadline the members of the
group are probed, and when it passes their progress is judged: first who has not begun the call,
else who has begun it but is silent, else whom the callers wait for.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from allhands_server.machine import wording
from allhands_server.machine.agenda import Agenda, Appointment
from allhands_server.machine.effects import Answer, Effect
from allhands_server.machine.events import AwaitVerdict
from allhands_server.machine.limits import check_name
from allhands_server.machine.member import Member
from allhands_server.machine.members import World
from allhands_server.machine.refusals import Refused, Status
from allhands_server.machine.values import AbsentRank, Presence, Progress, Verdict

PROBE_LEAD = 0.3
"""Seconds between the probe and the verdict; where there is little time, a third of it."""
MEMORY = 5.0
"""Seconds for which a verdict stands for callers whose deadlines pass later."""
_FRESH_PROBE = 1.0

_Call = tuple[str, int]  # group, sequence


@dataclass(slots=True)
class _Case:
    request: AwaitVerdict
    callers: dict[int, AwaitVerdict] = field(default_factory=dict)  # by ticket
    waited_for: dict[int, set[int]] = field(default_factory=dict)  # rank -> who waits for it
    probed: float | None = None
    verdict: Verdict | None = None


class Verdicts:
    """The calls of one world that somebody complains about."""

    def __init__(self, world: World, agenda: Agenda) -> None:
        self._world = world
        self._agenda = agenda
        self._cases: dict[_Call, _Case] = {}
        self._callers: dict[int, tuple[_Case, Appointment]] = {}

    def ask(self, ticket: int, request: AwaitVerdict, now: float, due: float | None) -> None:
        """Remember a complaint; `expire` answers it when it is due."""
        check_name("the name of the group", request.group)
        check_name("the operation", request.operation, empty=True)
        if due is None:
            raise Refused(
                Status.INVALID_ARGUMENT, "a verdict is given at the call's deadline: give it one"
            )
        asker = self._world.member(request.member_id)
        case = self._cases.setdefault((request.group, request.sequence), _Case(request))
        case.callers[ticket] = request
        for rank in request.waiting_on:
            case.waited_for.setdefault(rank, set()).add(asker.rank)
        lead = min(PROBE_LEAD, max(0.0, due - now) / 3)
        appointment = self._agenda.at(due - lead, partial(self._probe, case))
        self._callers[ticket] = (case, appointment)

    def expire(self, ticket: int, now: float) -> Effect:
        """Answer a complaint: with the verdict there is, or a new one."""
        case, _ = self._callers[ticket]
        if case.verdict is None:
            case.verdict = self._verdict(case, now)
            self._agenda.at(now + MEMORY, partial(self._forget, case))
        self.withdraw(ticket)
        return Answer(ticket, case.verdict)

    def withdraw(self, ticket: int) -> None:
        if (found := self._callers.pop(ticket, None)) is None:
            return
        case, appointment = found
        appointment.cancel()
        del case.callers[ticket]
        self._drop_if_idle(case)

    def _forget(self, case: _Case, now: float) -> list[Effect]:
        case.verdict = None
        self._drop_if_idle(case)
        return []

    def _drop_if_idle(self, case: _Case) -> None:
        if not case.callers and case.verdict is None:
            self._cases.pop((case.request.group, case.request.sequence), None)

    def _probe(self, case: _Case, now: float) -> list[Effect]:
        # All callers' deadlines pass at nearly one time: one probe serves them all.
        if case.verdict or (case.probed is not None and now - case.probed < _FRESH_PROBE):
            return []
        case.probed = now
        group, sequence = case.request.group, case.request.sequence
        members = [self._world.members.get(rank) for rank in self._ranks(group)]
        return self._world.probe(
            [one for one in members if one is not None and one.completed(group) < sequence], now
        )

    def _ranks(self, group: str) -> Iterable[int]:
        """The ranks of a group; of one that nobody has opened, all of the world."""
        ranks = self._world.groups.ranks_of(group)
        return range(self._world.size) if ranks is None else sorted(set(ranks))

    def _verdict(self, case: _Case, now: float) -> Verdict:
        group, sequence = case.request.group, case.request.sequence
        ranks = list(self._ranks(group))
        not_begun = [self._not_begun(rank, case, now) for rank in ranks]
        absent = [one for one in not_begun if one is not None]
        if not absent:
            stuck = [self._stuck(rank, case, now) for rank in ranks]
            absent = [one for one in stuck if one is not None]
        if not absent:
            absent = [self._slow(rank, case) for rank in sorted(case.waited_for)]
        return Verdict(group, sequence, case.request.operation, tuple(absent))

    def _not_begun(self, rank: int, case: _Case, now: float) -> AbsentRank | None:
        group, sequence = case.request.group, case.request.sequence
        member = self._world.members.get(rank)
        if member is None:
            return AbsentRank(rank, "never joined", f"rank {rank} never joined")
        if member.completed(group) >= sequence:
            return None
        match member.presence:
            case Presence.LOST:
                return _absent(member, "lost", f"{member} is lost: {member.reason}")
            case Presence.LEFT:
                why = f" because of {wording.short(member.reason)}" if member.reason else ""
                return _absent(member, "left", f"{member} has left the job{why}")
        if member.begun(group) >= sequence:
            return None
        if _is_silent(member, case):
            return _silent(member, now)
        return _busy(member, group, now)

    def _stuck(self, rank: int, case: _Case, now: float) -> AbsentRank | None:
        member = self._world.members[rank]  # else it would not have begun
        done = member.completed(case.request.group) >= case.request.sequence
        return None if done or not _is_silent(member, case) else _silent(member, now)

    def _slow(self, rank: int, case: _Case) -> AbsentRank:
        waiting = wording.ranks(case.waited_for[rank])
        member = self._world.members.get(rank)
        who = f"rank {rank}" if member is None else str(member)
        text = (
            f"{who} has begun {_call(case.request.operation, case.request.sequence)}, but what "
            f"rank {waiting} needs of it has not arrived: it is slow, or unreachable from there"
        )
        if member is None:
            return AbsentRank(rank, "slow", text)
        return _absent(member, "slow", text)


def _is_silent(member: Member, case: _Case) -> bool:
    # A probe that another case has sent since may still be under way.
    asked, probed = member.unanswered, case.probed
    return member.is_broken or (asked is not None and probed is not None and asked <= probed)


def _silent(member: Member, now: float) -> AbsentRank:
    doing = max(member.progress(now), key=lambda one: -one.elapsed, default=None)
    last = f"; last it said it was {_doing(doing)}" if doing is not None else ""
    text = f"{member} does not answer, its last heartbeat is {now - member.heard:.1f} s ago{last}"
    return _absent(member, "silent", text, doing)


def _busy(member: Member, group: str, now: float) -> AbsentRank:
    progress = sorted(member.progress(now), key=lambda one: one.elapsed)
    inside = [one for one in progress if one.operation]
    if inside:
        where = "" if inside[0].group == group else f" of group {wording.short(inside[0].group)}"
        text = f"{member} is {_doing(inside[0], where)}"
        return _absent(member, "elsewhere", text, inside[0])
    if not progress:
        return _absent(member, "outside", f"{member} is alive, and has begun no operation yet")
    doing = next((one for one in progress if one.group == group), progress[0])
    if not doing.completed:
        return _absent(member, "outside", f"{member} is alive, and has begun no operation", doing)
    text = f"{member} is alive, and {_doing(doing)}"
    return _absent(member, "outside", text, doing)


def _doing(one: Progress, where: str = "") -> str:
    if one.operation:
        return f"in {_call(one.operation, one.sequence)}{where} for {one.elapsed:.1f} s"
    return f"in no operation for {one.elapsed:.1f} s, since sequence number {one.completed}{where}"


def _call(operation: str, sequence: int) -> str:
    return f"{operation or 'the operation with sequence number'} {sequence}"


def _absent(member: Member, state: str, text: str, doing: Progress | None = None) -> AbsentRank:
    return AbsentRank(
        rank=member.rank,
        state=state,
        text=text,
        host=member.join.host,
        pid=member.join.pid,
        sequence=doing.sequence if doing else 0,
        operation=doing.operation if doing else "",
        elapsed=doing.elapsed if doing else 0.0,
    )
