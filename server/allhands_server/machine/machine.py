"""The coordinator as a pure machine: events and the time in, effects out.

The law:
  1. The machine does no I/O, reads no clock and draws no random number.
  2. Events come in one order, and the time given with them never goes back.
  3. What has arrived is heard before what is due is judged: an event that comes at or after the
     instant at which it would have been missed still counts.
  4. Every ticket is answered or refused exactly once, unless it is withdrawn before.
  5. Nothing is pushed to a session after its End, or after it broke.
"""

import contextlib
from dataclasses import dataclass
from typing import Protocol

from allhands_server.machine.effects import (
    Answer,
    CallerRefused,
    Drained,
    Draining,
    Effect,
    End,
    JobEnded,
    Push,
    Refuse,
    Report,
)
from allhands_server.machine.events import (
    Abort,
    AbortJob,
    Acknowledged,
    AnyRequest,
    Arrive,
    Asked,
    AwaitVerdict,
    CloseGroup,
    CollectReports,
    DeleteJob,
    DescribeJob,
    Drain,
    Event,
    GaveUp,
    Heartbeat,
    Inspected,
    Joining,
    LastReport,
    Leave,
    LinkBroken,
    LinkSilent,
    ListJobs,
    Looked,
    Meet,
    OpenGroup,
    QueueLength,
    QueuePop,
    QueuePush,
    Reform,
    RefusedCaller,
    Remark,
    ReportExit,
    ReportPart,
    Said,
    SessionBroke,
    Tick,
    Vouched,
    Withdrawn,
)
from allhands_server.machine.formatting import escape, quote
from allhands_server.machine.jobs import Job, Jobs
from allhands_server.machine.limits import LONGEST_STACK, check_name
from allhands_server.machine.refusals import Refusal, Refused, Status
from allhands_server.machine.refused_callers import TurnedAway
from allhands_server.machine.timers import Agenda, Appointment
from allhands_server.machine.world import admission, report_collection
from allhands_server.machine.world.member import Member
from allhands_server.machine.world.world import World

_CONCLUSIONS = (Answer, Refuse)
_GOING_DOWN = Refusal(Status.UNAVAILABLE, "the coordinator is going down and takes in nobody")


class _Place(Protocol):
    """Where a ticket can wait."""

    def expire(self, ticket: int, now: float) -> Effect:
        """End the wait of a ticket whose time is over, saying what it waited for in vain."""

    def withdraw(self, ticket: int) -> None:
        """End the wait of a ticket, as if it had not been. Idempotent."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    job: Job
    place: _Place
    appointment: Appointment | None


@dataclass(frozen=True, slots=True)
class _Session:
    job: Job
    world: World
    member: Member


class Machine:
    """All of the coordinator's state and rules; a shell feeds it and acts for it."""

    def __init__(self, space: str = "") -> None:
        """Make an empty one; in `space` are the processes that its shell can look at."""
        self._agenda = Agenda()
        self._jobs = Jobs(self._agenda, space)
        self._waiting: dict[int, _Waiting] = {}
        self._sessions: dict[int, _Session] = {}
        self._touched: dict[Job, None] = {}
        self._turned_away = TurnedAway()
        self._draining: Refusal | None = None
        """What joiners are told while the coordinator drains."""

    @property
    def next_due(self) -> float | None:
        """When the machine wants to be told the time, at the latest; None: no need."""
        return self._agenda.next_due

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in one event, and do all that is due by `now`."""
        effects = self._dispatch(event, now)
        self._settle(effects)  # first: what is answered by now is not due any more
        if overdue := self._agenda.run(now):
            self._settle(overdue)
            effects += overdue
        if self._draining is not None and not any(job.is_live for job in self._jobs):
            effects.append(Drained())
        return effects

    def _dispatch(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, Asked):  # first: of these there are most by far
            try:
                return self._asked(event.ticket, event.request, event.due, now)
            except Refused as refused:
                return [Refuse(event.ticket, refused.refusal)]
        match event:
            case Withdrawn(ticket):
                return self._withdrawn(ticket)
            case Joining():
                return self._joining(event, now)
            case Said(session, remark):
                return self._said(session, remark, now)
            case SessionBroke(session):
                return self._broke(session, now)
            case RefusedCaller(address, why):
                return self._refused(address, why, now)
            case Looked(name, member_id, found, stack):
                return self._looked(name, member_id, found, stack, now)
            case Acknowledged(name, member_id):
                return self._acknowledged(name, member_id, now)
            case Drain(reason):
                return self._drain(reason)
            case Tick():
                return []

    def _settle(self, effects: list[Effect]) -> None:
        """Forget the tickets and sessions that are over, and the jobs that have nothing left."""
        for effect in effects:
            if isinstance(effect, _CONCLUSIONS):
                if self._waiting:
                    self._close(effect.ticket)
            elif isinstance(effect, End):
                if (ended := self._sessions.pop(effect.session, None)) is not None:
                    self._touched[ended.job] = None
            elif isinstance(effect, JobEnded):
                self._touched[self._jobs.get(effect.job)] = None
        if self._touched:
            for job in self._touched:
                self._jobs.tidy(job)
            self._touched.clear()

    # ------------------------------------------------------------ requests

    def _asked(
        self, ticket: int, request: AnyRequest, due: float | None, now: float
    ) -> list[Effect]:
        match request:
            case ListJobs():
                views = (job.view(now) for job in self._jobs)
                return [Answer(ticket, tuple(sorted(views, key=lambda view: view.job)))]
            case DescribeJob(name):
                return [Answer(ticket, self._jobs.get(name).view(now))]
            case AwaitVerdict(name) | Meet(name):
                job = self._jobs.get(name)
                if job.verdicts is None:
                    raise Refused(Status.NOT_FOUND, f"nobody has joined job {name}")
                effects = job.verdicts.ask(ticket, request, now, due)
                if not any(isinstance(one, Answer) and one.ticket == ticket for one in effects):
                    self._wait(ticket, job, job.verdicts, None)  # they see to the time themselves
                return effects
            case AbortJob(name, by, reason):
                return self._abort(ticket, self._jobs.get(name), by, reason, now)
            case DeleteJob(name, by, force):
                return self._delete(ticket, self._jobs.get(name), by, force, now)
            case ReportExit(name):
                job = self._jobs.get(name)
                if job.world is None:
                    return [Answer(ticket, False)]
                is_known, effects = job.world.exited(request, now)
                return [Answer(ticket, is_known), *effects, *self._review(job, now)]
            case Reform(name):
                job = self._jobs.get(name)
                if job.reforms is None:
                    raise Refused(Status.NOT_FOUND, f"nobody has joined job {name}")
                effects = job.reforms.ask(ticket, request, now)
                place: _Place = job.reforms
            case CollectReports(name):
                job = self._jobs.get(name)
                if job.world is None:
                    raise Refused(Status.NOT_FOUND, f"nobody has joined job {name}")
                effects = job.world.reports.ask(ticket, request)
                if isinstance(effects[0], Answer):
                    return effects
                latest = now + report_collection.SECONDS
                self._wait(
                    ticket, job, job.world.reports, latest if due is None else min(due, latest)
                )
                return effects
            case Arrive(name):
                job = self._jobs.open(name)
                self._touched[job] = None
                effects = job.barriers.ask(ticket, request)
                place = job.barriers
            case QueuePush(name) | QueuePop(name) | QueueLength(name):
                job = self._jobs.open(name)
                self._touched[job] = None
                effects = job.queues.ask(ticket, request)
                place = job.queues
            case _:
                job = self._jobs.open(request.job)
                if not job.is_live:
                    self._touched[job] = None
                effects = job.keys.ask(ticket, request)
                place = job.keys
        if not effects:
            self._wait(ticket, job, place, due)
        return effects

    def _wait(self, ticket: int, job: Job, place: _Place, due: float | None) -> None:
        appointment = None
        if due is not None:
            appointment = self._agenda.at(due, lambda now: [place.expire(ticket, now)])
        self._waiting[ticket] = _Waiting(job, place, appointment)

    def _withdrawn(self, ticket: int) -> list[Effect]:
        if (waiting := self._waiting.get(ticket)) is not None:
            waiting.place.withdraw(ticket)
            self._close(ticket)
        return []

    def _close(self, ticket: int) -> None:
        if (waiting := self._waiting.pop(ticket, None)) is not None:
            if waiting.appointment is not None:
                waiting.appointment.cancel()
            self._touched[waiting.job] = None

    # ------------------------------------------------------------ sessions

    def _joining(self, event: Joining, now: float) -> list[Effect]:
        try:
            admission.check_form(event.join)
            if self._draining is not None:
                raise Refused(self._draining.status, self._draining.text)
            job = self._jobs.open(event.join.job)
            self._touched[job] = None
            world, member, effects = job.join(event.session, event.join, event.fresh, now)
        except Refused as refused:
            return [
                End(event.session, refused.refusal),
                Report(f"refused to take in a worker: {refused.refusal.text}"),
            ]
        self._sessions[event.session] = _Session(job, world, member)
        if world.is_forming:
            known = self._turned_away.recent(now)
            effects += [Push(event.session, CallerRefused(*one)) for one in known]
        return effects

    def _said(self, number: int, remark: Remark, now: float) -> list[Effect]:
        if (session := self._sessions.get(number)) is None:
            return []  # it ended while this was on its way
        try:
            effects = _heed(session.job, session.world, session.member, remark, now)
            return [*effects, *self._review(session.job, now)]
        except Refused as refused:
            return [End(number, refused.refusal), *session.world.broke(session.member, now)]

    def _broke(self, number: int, now: float) -> list[Effect]:
        if (session := self._sessions.pop(number, None)) is None:
            return []
        self._touched[session.job] = None
        return session.world.broke(session.member, now)

    def _refused(self, address: str, why: str, now: float) -> list[Effect]:
        """Tell those who wait for a world to be complete."""
        if not self._turned_away.note(address, why, now):
            return []
        waiting = [one for one, session in self._sessions.items() if session.world.is_forming]
        return [Push(session, CallerRefused(address, why)) for session in waiting]

    def _acknowledged(self, name: str, member_id: str, now: float) -> list[Effect]:
        with contextlib.suppress(Refused):  # it is over, or gone
            world = self._jobs.get(name).world
            if world is not None:
                world.liveness.acknowledged(world.member(member_id), now)
        return []

    def _looked(
        self, name: str, member_id: str, found: str, stack: str, now: float
    ) -> list[Effect]:
        try:
            job = self._jobs.get(name)
        except Refused:  # it is over
            return []
        self._touched[job] = None
        effects = job.world.saw(member_id, found, now, stack) if job.world is not None else []
        return [*effects, *self._review(job, now)]

    def _review(self, job: Job, now: float) -> list[Effect]:
        """See which verdicts can be given, now that more is known."""
        return [] if job.verdicts is None else job.verdicts.review(now)

    def _abort(self, ticket: int, job: Job, by: str, reason: str, now: float) -> list[Effect]:
        world = job.world
        if world is None or not world.present:
            raise Refused(Status.FAILED_PRECONDITION, f"nobody is in job {job.name}")
        told = len(world.present)
        if job.state == "forming":
            text = f"job {job.name} was aborted by {by}: {reason}"
            effects = world.dismiss(Refusal(Status.ABORTED, text))
        else:
            effects = world.abort("", by, reason, now)
        self._touched[job] = None
        return [Answer(ticket, told), *effects]

    def _delete(self, ticket: int, job: Job, by: str, force: bool, now: float) -> list[Effect]:
        by = escape(by)
        inside = 0 if job.world is None else len(job.world.present)
        if inside and not force:
            members = f"{inside:,} member{'s are' if inside > 1 else ' is'}"
            raise Refused(
                Status.FAILED_PRECONDITION,
                f"{members} in job {job.name}: end them first, or abort it "
                f"(`allhands abort {job.name}`), or delete it by force (`--force`, force=True)",
            )
        self._touched[job] = None
        effects = job.clear(f"job {job.name} was deleted by {by}", now)
        report = Report(f"job {job.name} was deleted by {quote(by)}")
        return [Answer(ticket, inside), *effects, report]

    def _drain(self, reason: str) -> list[Effect]:
        self._draining = _shutting_down(reason) if reason else _GOING_DOWN
        effects: list[Effect] = []
        for job in self._jobs:
            if job.world is not None and job.state == "forming":
                effects += job.world.dismiss(_GOING_DOWN)
        if reason:
            dismissed = {effect.session for effect in effects if isinstance(effect, End)}
            told = [number for number in self._sessions if number not in dismissed]
            effects += [Push(number, Draining(reason)) for number in told]
        return effects


def _shutting_down(reason: str) -> Refusal:
    return Refusal(
        Status.FAILED_PRECONDITION,
        f"the coordinator is shutting down ({reason}) and takes in nobody: "
        "join again when it has been started anew, or name another one",
    )


def _heed(job: Job, world: World, member: Member, remark: Remark, now: float) -> list[Effect]:
    probe = remark.probe if isinstance(remark, Heartbeat) else 0
    return [
        *world.heard(member, now, probe=probe),
        *_meant(job, world, member, remark, now),
    ]


def _meant(job: Job, world: World, member: Member, remark: Remark, now: float) -> list[Effect]:
    """Return what follows from what a member says."""
    match remark:
        case Heartbeat(_, progress, stack):
            member.learn(progress, now)
            if stack:
                member.stack = escape(stack)[-LONGEST_STACK:]
            world.clocked(member, remark, now)
            return []
        case LastReport(report):
            world.postmortem.keep(member, report)
            return []
        case ReportPart():
            return world.reports.take(member, remark)
        case OpenGroup(group, ranks):
            check_name("the name of the group", group)
            world.groups.open(group, ranks, member.rank)
            return [] if job.verdicts is None else job.verdicts.opened(group)
        case CloseGroup(group):
            world.close_group(member, group)
            if job.verdicts is not None:
                job.verdicts.closed(group)
            return []
        case LinkBroken(rank, reason, shares_memory):
            return world.link_broke(rank, member, reason, shares_memory, now)
        case LinkSilent(rank, seconds, is_over):
            if is_over:
                return world.silences.end(member, rank, now)
            return world.silences.begin(member, rank, seconds, now)
        case Leave():
            return world.leave(member, remark, now)
        case Inspected(member_id, found, stack):
            return world.saw(member_id, found, now, stack)
        case Vouched(rank):
            suspect = world.present.get(rank)
            return [] if suspect is None else world.liveness.vouched(suspect, now)
        case Abort(group, reason):
            return world.abort(group, str(member), reason, now, but=member)
        case GaveUp(group, sequence, reason):
            if job.verdicts is None:
                return []
            return job.verdicts.give_up(member, group, sequence, reason, now)
