"""Who is to blame when a call does not end: one verdict on each call, the same for all callers.

A caller asks when it has been blocked for a while. Shortly before its deadline the members of the
group are probed, and a process that does not answer is looked at. When the deadline passes their
progress is judged: first who has not begun the call, else who has begun it but is silent, else who
cannot reach whom, else whom the callers wait for. Where members could still answer, the verdict
waits for them for a moment: callers wait for it longer than for their call.

A monitored barrier is a call that ranks meet in here.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from allhands_server.machine.effects import Answer, Effect
from allhands_server.machine.events import AwaitVerdict, Meet
from allhands_server.machine.formatting import escape
from allhands_server.machine.limits import LONGEST_ERROR, check_name
from allhands_server.machine.refusals import Refused, Status
from allhands_server.machine.timers import Agenda, Appointment
from allhands_server.machine.values import AbsentRank, GivenUp, Presence, State, Verdict
from allhands_server.machine.world.absent_ranks import (
    explains_silence,
    has_ended,
    judge_left,
    judge_lost,
    judge_never_joined,
    judge_occupied,
    judge_silent,
    judge_slow,
    judge_unreachable,
    make_late_verdict,
    make_verdict,
    name_call,
)
from allhands_server.machine.world.broken_links import Pair, blame, pair
from allhands_server.machine.world.member import Member
from allhands_server.machine.world.world import World

PROBE_LEAD = 0.3
"""Seconds between the probe and the deadline; where there is little time, a third of it."""
PATIENCE = 0.5
"""Seconds after the deadline in which members may still answer."""
MEMORY = 5.0
"""Seconds for which a verdict stands for callers whose deadlines pass later."""
BARRIER_MEMORY = 60.0
"""The same, for who comes to a monitored barrier that has failed."""
PAST = 64
"""Verdicts of one world that are kept for ranks that come to a call after it was given up."""
BARRIER = "monitored_barrier"
_FRESH_PROBE = 1.0
LOSS_LAG = 0.5
"""Seconds from a verdict to the loss of those that it found silent for the whole window."""
_LOOK_AFTER = 0.1
"""Seconds after a probe before processes that did not answer are looked at."""

_Key: TypeAlias = tuple[str, int, bool]  # group, sequence, whether ranks meet here
_MILD = (State.BUSY, State.ELSEWHERE)
"""What being unreachable explains better."""


@dataclass(slots=True)
class _Case:
    key: _Key
    operation: str
    callers: dict[int, int] = field(default_factory=dict)  # ticket -> rank
    overdue: set[int] = field(default_factory=set)  # tickets
    begun: set[int] = field(default_factory=set)  # ranks that have asked, or arrived
    waited_for: dict[int, set[int]] = field(default_factory=dict)  # rank -> who waits for it
    probed: float | None = None
    until: float | None = None
    """When patience is over."""
    verdict: Verdict | None = None
    given_up: GivenUp | None = None

    @property
    def group(self) -> str:
        return self.key[0]

    @property
    def sequence(self) -> int:
        return self.key[1]

    @property
    def is_barrier(self) -> bool:
        return self.key[2]


class Verdicts:
    """The calls of one world that somebody complains about."""

    def __init__(self, world: World, agenda: Agenda) -> None:
        self._world = world
        self._agenda = agenda
        self._cases: dict[_Key, _Case] = {}
        self._callers: dict[int, tuple[_Case, tuple[Appointment, ...]]] = {}
        self._late: dict[_Key, _Case] = {}  # those whose deadline has passed
        self._past: dict[_Key, tuple[Verdict, float]] = {}  # for who comes late; oldest first

    def ask(
        self, ticket: int, request: AwaitVerdict | Meet, now: float, due: float | None
    ) -> list[Effect]:
        """Take in a complaint, or an arrival; it is answered now, or when it is due.

        Raises:
            Refused: it makes no sense, or comes from nobody.
        """
        check_name("the name of the group", request.group)
        if due is None:
            raise Refused(
                Status.INVALID_ARGUMENT, "a verdict is given at the call's deadline: give it one"
            )
        asker = self._world.member(request.member_id)
        case = self._case(request)
        if case.given_up is not None:
            return [Answer(ticket, case.given_up)]
        case.callers[ticket] = asker.rank
        case.begun.add(asker.rank)
        if isinstance(request, AwaitVerdict):
            for rank in request.waiting_on:
                case.waited_for.setdefault(rank, set()).add(asker.rank)
        elif case.begun.issuperset(self._ranks(case.group)):
            return self._passed(case)
        lead = min(PROBE_LEAD, max(0.0, due - now) / 3)
        appointments = (
            self._agenda.at(due - lead, partial(self._probe, case, lead)),
            self._agenda.at(due, partial(self._due, case, ticket)),
        )
        self._callers[ticket] = (case, appointments)
        if case.is_barrier and case.verdict is not None:
            return self._answer(case, [ticket])
        return []

    def expire(self, ticket: int, now: float) -> Effect:
        raise AssertionError("verdicts see to the time themselves")

    def withdraw(self, ticket: int) -> None:
        if (found := self._callers.pop(ticket, None)) is None:
            return
        case, appointments = found
        for appointment in appointments:
            appointment.cancel()
        rank = case.callers.pop(ticket)
        if case.is_barrier:
            case.begun.discard(rank)
        case.overdue.discard(ticket)
        self._drop_if_idle(case)

    def review(self, now: float) -> list[Effect]:
        """Give the verdicts that only waited for what is known now."""
        return [effect for case in [*self._late.values()] for effect in self._conclude(case, now)]

    def opened(self, group: str) -> list[Effect]:
        """Learn which ranks a group has: those who meet in it may have come before that."""
        met = [
            case
            for case in self._cases.values()
            if case.is_barrier and case.group == group and case.callers
            if case.verdict is None and case.begun.issuperset(self._ranks(group))
        ]
        return [effect for case in met for effect in self._passed(case)]

    def closed(self, group: str) -> None:
        """Learn that a rank has closed a group: with the last one, its numbers begin anew."""
        if self._world.groups.ranks_of(group) is None:
            for key in [one for one in self._past if one[0] == group]:
                del self._past[key]

    def give_up(
        self, member: Member, group: str, sequence: int, reason: str, now: float
    ) -> list[Effect]:
        """Take in that a member has given up a call on purpose; the others in it hear of it."""
        check_name("the name of the group", group)
        case = self._cases.setdefault((group, sequence, False), _Case((group, sequence, False), ""))
        if case.given_up is not None:
            return []
        told = escape(reason)[:LONGEST_ERROR]
        case.given_up = GivenUp(group, sequence, member.rank, str(member), told)
        self._agenda.at(now + MEMORY, partial(self._forget, case))
        return self._world.given_up(case.given_up)

    # ------------------------------------------------------------ cases

    def _case(self, request: AwaitVerdict | Meet) -> _Case:
        is_barrier = isinstance(request, Meet)
        operation = BARRIER if isinstance(request, Meet) else request.operation
        check_name("the operation", operation, empty=True)
        key = (request.group, request.sequence, is_barrier)
        return self._cases.setdefault(key, _Case(key, operation))

    def _passed(self, case: _Case) -> list[Effect]:
        tickets = [*case.callers]
        for ticket in tickets:
            self.withdraw(ticket)
        return [Answer(ticket, None) for ticket in tickets]

    def _due(self, case: _Case, ticket: int, now: float) -> list[Effect]:
        case.overdue.add(ticket)
        return self._conclude(case, now)

    def _conclude(self, case: _Case, now: float) -> list[Effect]:
        """Answer the callers whose time is over, if there is a verdict or can be one."""
        effects: list[Effect] = []
        if case.verdict is None:
            if case.until is None:
                case.until = now + PATIENCE
                self._late[case.key] = case
                self._agenda.at(case.until, partial(self._lose_patience, case))
                if case.probed is None:
                    effects += self._probe(case, PROBE_LEAD, now)
            if now < case.until and self._may_still_answer(case):
                return effects
            case.verdict = self._verdict(case, now)
            self._remember(case, now)
            del self._late[case.key]
            memory = BARRIER_MEMORY if case.is_barrier else MEMORY
            self._agenda.at(now + memory, partial(self._forget, case))
            # Later: whose call it was is to hear of its deadline first.
            self._agenda.at(now + LOSS_LAG, partial(self._world.lose_held_up, case.verdict))
        tickets = case.callers if case.is_barrier else case.overdue
        return effects + self._answer(case, [*tickets])

    def _lose_patience(self, case: _Case, now: float) -> list[Effect]:
        return self._conclude(case, now) if case.key in self._late else []

    def _answer(self, case: _Case, tickets: Iterable[int]) -> list[Effect]:
        answers: list[Effect] = [Answer(ticket, case.verdict) for ticket in tickets]
        for answer in answers:
            assert isinstance(answer, Answer)
            self.withdraw(answer.ticket)
        return answers

    def _forget(self, case: _Case, now: float) -> list[Effect]:
        case.verdict = case.given_up = case.until = None
        self._drop_if_idle(case)
        return []

    def _drop_if_idle(self, case: _Case) -> None:
        if case.callers or case.verdict is not None or case.given_up is not None:
            return
        self._late.pop(case.key, None)
        if self._cases.get(case.key) is case:
            del self._cases[case.key]

    def _remember(self, case: _Case, now: float) -> None:
        """Keep the first verdict on a call: who comes to it later should be told the same."""
        assert case.verdict is not None
        if not case.is_barrier and case.verdict.absent and case.key not in self._past:
            self._past[case.key] = case.verdict, now
            if len(self._past) > PAST:
                del self._past[next(iter(self._past))]

    # ------------------------------------------------------------ asking

    def _probe(self, case: _Case, lead: float, now: float) -> list[Effect]:
        # All callers' deadlines pass at nearly one time: one probe serves them all.
        if case.verdict or (case.probed is not None and now - case.probed < _FRESH_PROBE):
            return []
        case.probed = now
        self._agenda.at(now + max(lead / 2, _LOOK_AFTER), partial(self._look, case))
        return self._world.probe(self._concerned(case), now, stack=True)

    def _look(self, case: _Case, now: float) -> list[Effect]:
        """Have the processes looked at that do not answer."""
        if case.verdict is not None or not case.callers:
            return []
        silent = [one for one in self._concerned(case) if _is_silent(one, case)]
        return [effect for one in silent for effect in self._world.look(one, stack=True)]

    def _may_still_answer(self, case: _Case) -> bool:
        return any(
            _is_silent(one, case) and not explains_silence(one.sight)
            for one in self._concerned(case)
        )

    def _concerned(self, case: _Case) -> list[Member]:
        """The members of whom something can be learnt."""
        found = [self._world.present.get(rank) for rank in self._ranks(case.group)]
        return [one for one in found if one is not None and not self._is_done(one, case)]

    def _is_done(self, member: Member, case: _Case) -> bool:
        if case.is_barrier:
            return member.rank in case.begun
        return member.completed(case.group) >= case.sequence

    def _ranks(self, group: str) -> Iterable[int]:
        """The ranks of a group; of one that nobody has opened, all of the world."""
        ranks = self._world.groups.ranks_of(group)
        return range(self._world.size) if ranks is None else sorted(set(ranks))

    # ------------------------------------------------------------ judging

    def _verdict(self, case: _Case, now: float) -> Verdict:
        ranks = list(self._ranks(case.group))
        found = [self._not_begun(rank, case, now) for rank in ranks]
        absent = {one.rank: one for one in found if one is not None}
        if not absent:
            stuck = [self._stuck(rank, case, now) for rank in ranks]
            absent = {one.rank: one for one in stuck if one is not None}
        for one in self._unreachable(case, ranks, absent.keys()):
            if one.rank not in absent or absent[one.rank].state in _MILD:
                absent[one.rank] = one
        if not absent and (past := self._past.get(case.key)) is not None:
            given, when = past
            return make_late_verdict(given, now - when)
        if not absent:
            absent = {rank: self._slow(rank, case) for rank in case.waited_for}
        inorder = [one for _, one in sorted(absent.items())]
        return make_verdict(case.group, case.sequence, case.operation, inorder)

    def _not_begun(self, rank: int, case: _Case, now: float) -> AbsentRank | None:
        member = self._world.members.get(rank)
        if member is None:
            return judge_never_joined(rank)
        if self._is_done(member, case):
            return None
        if member.presence is Presence.LOST:
            return member.fate
        if member.presence is Presence.LEFT:
            return judge_left(member)
        has_begun = member.begun(case.group) >= case.sequence and not case.is_barrier
        if has_begun or rank in case.begun:
            return None
        if _is_silent(member, case):
            return _silent(member, now)
        return judge_occupied(member, case.group, now)

    def _stuck(self, rank: int, case: _Case, now: float) -> AbsentRank | None:
        member = self._world.members[rank]  # else it would not have begun
        done = self._is_done(member, case)
        return None if done or not _is_silent(member, case) else _silent(member, now)

    def _unreachable(
        self, case: _Case, ranks: Iterable[int], missing: Collection[int]
    ) -> list[AbsentRank]:
        """Judge by what members say of the peers that do not answer them.

        Of two, who is `missing` is named, or else who is done: what the other needs of it has
        not come through.
        """
        present = self._world.present
        alive = {
            rank: present[rank]
            for rank in ranks
            if rank in present and not _is_silent(present[rank], case)
        }
        pairs: set[Pair] = {
            pair(rank, other)
            for rank, one in alive.items()
            for other in one.cut_off(case.group)
            if other in alive and other != rank
        }
        done = {rank for rank, one in alive.items() if self._is_done(one, case)}
        blamed: dict[int, list[int]] = {}
        for both in sorted(pairs):
            culprits = [rank for rank in both if rank in missing] or [
                rank for rank in both if rank in done
            ]
            if len(culprits) == 1:
                [culprit] = culprits
                blamed.setdefault(culprit, []).append(sum(both) - culprit)
                pairs.discard(both)
        for rank, others in blame(pairs).items():
            blamed.setdefault(rank, []).extend(others)
        return [
            judge_unreachable(
                alive[rank], [alive[one] for one in sorted(others)], "pings are unanswered"
            )
            for rank, others in sorted(blamed.items())
        ]

    def _slow(self, rank: int, case: _Case) -> AbsentRank:
        member = self._world.members.get(rank)
        if member is None:
            return judge_never_joined(rank)
        call = name_call(case.operation, case.sequence)
        return judge_slow(member, call, sorted(case.waited_for[rank]))


def _is_silent(member: Member, case: _Case) -> bool:
    # A probe that another case has sent since may still be under way.
    asked, probed = member.unanswered, case.probed
    return member.is_broken or (asked is not None and probed is not None and asked <= probed)


def _silent(member: Member, now: float) -> AbsentRank:
    if member.is_broken or has_ended(member.sight):
        return judge_lost(member, "its session broke", now)
    return judge_silent(member, now)
