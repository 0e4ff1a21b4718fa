"""Open sessions: their beginnings, messages and ends."""

from allhands_proto.quick_dataclass import dataclass
from allhands_server.machine.effects import (
    CallerRefused,
    Draining,
    Effect,
    EndSession,
    OperatorLog,
    Push,
    Received,
)
from allhands_server.machine.events import SessionMessage, SessionOpened, SessionResumed
from allhands_server.machine.formatting import escape
from allhands_server.machine.jobs import Job, Jobs
from allhands_server.machine.refusals import Refusal, Refused, Status
from allhands_server.machine.refused_callers import RefusedCallers
from allhands_server.machine.session_messages import take_message
from allhands_server.machine.tokens import Tokens
from allhands_server.machine.world import admission
from allhands_server.machine.world.member import Member, describe_process
from allhands_server.machine.world.resumption import find_resuming, resume_session
from allhands_server.machine.world.world import World


@dataclass(frozen=True, slots=True)
class _Session:
    job: Job
    world: World
    member: Member


class Sessions:
    """Sessions by number, each with its member; `touched` takes the jobs that may be unused."""

    def __init__(self, jobs: Jobs, tokens: Tokens, touched: dict[Job, None]) -> None:
        self._jobs = jobs
        self._tokens = tokens
        self._touched = touched
        self._sessions: dict[int, _Session] = {}
        self._refused_callers = RefusedCallers()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, event: SessionOpened, refusal: Refusal | None, now: float) -> list[Effect]:
        """Begin a session with a Join, unless nobody is taken in, by a refusal."""
        try:
            admission.check_join(event.join)
            if refusal is not None:
                raise Refused(refusal.status, refusal.text)
            if event.token:
                self._tokens.check_join(event.token, event.at)
            job = self._jobs.open(event.join.job)
            self._touched[job] = None
            world, member, effects = job.join(event.session, event.join, event.randomness, now)
        except Refused as refused:
            return self._refuse(event, refused.refusal, now)
        self._sessions[event.session] = _Session(job, world, member)
        if event.token:
            self._tokens.note_join(event.token, member.member_id)
        if world.is_forming:
            known = self._refused_callers.list_recent(now)
            effects += [Push(event.session, CallerRefused(*one)) for one in known]
        return effects

    def _refuse(self, event: SessionOpened, refusal: Refusal, now: float) -> list[Effect]:
        end = EndSession(event.session, refusal)
        if (job := self._jobs.find(event.join.job)) is not None:
            text = escape(f"{describe_process(event.join)} was refused: {refusal.text}")
            if refusal.retry_after is not None and job.events.has_kept("refused", text):
                return [end]  # it tries again and again
            job.events.add("refused", text, now)
        return [end, OperatorLog(f"refused to take in a worker: {refusal.text}")]

    def resume(self, event: SessionResumed, now: float) -> list[Effect]:
        """Go on with the session of a member on a new stream."""
        number, resume = event.session, event.resume
        try:
            job = self._jobs.get(resume.job)
            if job.world is None:
                raise refuse_without_world(job)
            member = find_resuming(job.world, resume)
        except Refused as refused:
            return [
                EndSession(number, refused.refusal),
                OperatorLog(f"refused to resume a session: {refused.refusal.text}"),
            ]
        self._touched[job] = None
        effects = resume_session(job.world, member, number, now)
        self._sessions[number] = _Session(job, job.world, member)
        return effects

    def take_message(self, event: SessionMessage, now: float) -> list[Effect]:
        """Give a message of a member to its job; acknowledge a numbered one."""
        number, sent = event.session, event.number
        if (session := self._sessions.get(number)) is None:
            return []  # it ended while this was on its way
        member = session.member
        if sent and sent <= member.received:
            return [Push(number, Received(member.received))]
        try:
            effects = take_message(session.job, session.world, member, event.message, now)
        except Refused as refused:
            return [
                EndSession(number, refused.refusal),
                *session.world.on_session_broken(member, now),
            ]
        if sent:
            member.received = sent
            if not any(isinstance(one, EndSession) and one.session == number for one in effects):
                effects.append(Push(number, Received(sent)))
        return [*effects, *session.job.review_verdicts(now)]

    def on_broken(self, number: int, now: float) -> list[Effect]:
        """Note the end of a session's stream. Idempotent."""
        if (session := self._sessions.pop(number, None)) is None:
            return []
        self._touched[session.job] = None
        return session.world.on_session_broken(session.member, now)

    def forget(self, number: int) -> None:
        """Forget a session that has been ended. Idempotent."""
        if (ended := self._sessions.pop(number, None)) is not None:
            self._touched[ended.job] = None

    def on_authentication_failed(self, address: str, why: str, now: float) -> list[Effect]:
        """Notify the members of incomplete worlds."""
        if not self._refused_callers.add(address, why, now):
            return []
        waiting = [one for one, session in self._sessions.items() if session.world.is_forming]
        for job in dict.fromkeys(self._sessions[one].job for one in waiting):
            job.events.add("refused", f"a caller at {address} was refused: {why}", now)
        return [Push(session, CallerRefused(address, why)) for session in waiting]

    def announce_drain(self, reason: str, dismissed: set[int]) -> list[Effect]:
        """Tell the members why the coordinator goes down, but for the `dismissed` sessions."""
        told = [number for number in self._sessions if number not in dismissed]
        return [Push(number, Draining(reason)) for number in told]


def refuse_without_world(job: Job) -> Refused:
    """Make the refusal of a request for the members of a job that has never had any."""
    return Refused(Status.NOT_FOUND, f"nobody has joined job {job.name}")
