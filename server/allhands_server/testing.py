"""Driver of the machine for tests: events at given times, recorded effects."""

import itertools
from dataclasses import dataclass, field
from typing import cast

from allhands_proto.session_proof import prove_membership
from allhands_server.machine import Machine
from allhands_server.machine.changes import Change
from allhands_server.machine.effects import (
    Answer,
    Changed,
    CheckConnection,
    Drained,
    Effect,
    EndSession,
    InspectProcess,
    JobEnded,
    Joined,
    Notification,
    OperatorLog,
    Push,
    Refuse,
)
from allhands_server.machine.events import (
    CommitDurable,
    Event,
    Randomness,
    RequestCancelled,
    RequestReceived,
    SessionBroken,
    SessionMessage,
    SessionOpened,
    SessionResumed,
    Tick,
)
from allhands_server.machine.member_messages import Join, MemberMessage, Resume
from allhands_server.machine.refusals import Refusal
from allhands_server.machine.requests import R, Request


@dataclass
class Transcript:
    """A machine with a record of effects; asserts the machine's laws."""

    now: float = 0.0
    machine: Machine = field(default_factory=Machine)
    log: list[str] = field(default_factory=list)
    is_drained: bool = False
    outcomes: dict[int, object] = field(default_factory=dict)
    """By ticket: the answer, or a Refusal."""
    ends: dict[int, Refusal | None] = field(default_factory=dict)
    """By session: why it was ended, None for well."""
    inspections: list[InspectProcess] = field(default_factory=list)
    """Processes that the machine wants the shell to look at."""
    commits: list[tuple[Change, ...]] = field(default_factory=list)
    """Those of a machine with a log, durable at once."""
    connection_checks: list[CheckConnection] = field(default_factory=list)
    """Connections of which it wants to know whether their other ends acknowledge what they get."""

    def __post_init__(self) -> None:
        self.ticket_numbers = itertools.count(1)
        self._sessions = itertools.count(1)
        self._unread: dict[int, list[Notification]] = {}
        self._broken: set[int] = set()
        self._cancelled: set[int] = set()

    def advance_to(self, now: float) -> None:
        """Let time pass, with a Tick at each due time, as a punctual shell does."""
        while (due := self.machine.next_due) is not None and due <= now:
            self.now = max(self.now, due)
            self.handle(Tick())
        self.now = now

    def oversleep(self, now: float) -> None:
        """Let time pass to `now` without a Tick on the way."""
        self.now = now
        self.handle(Tick())

    def handle(self, event: Event) -> list[Effect]:
        effects = self.machine.handle(event, self.now)
        for effect in effects:
            self._check_effect(effect)
        return effects

    def ask(self, request: Request[R], due: float | None = None) -> int:
        """Ask; return the ticket."""
        ticket = next(self.ticket_numbers)
        self.handle(RequestReceived(ticket, request, due))
        return ticket

    def ask_now(self, request: Request[R]) -> R:
        """Submit a request, and return the immediate answer."""
        outcome = self.outcomes[self.ask(request)]
        assert not isinstance(outcome, Refusal), outcome
        return cast(R, outcome)

    def ask_refused(self, request: Request[R]) -> Refusal:
        """Submit a request, and return the immediate refusal."""
        outcome = self.outcomes[self.ask(request)]
        assert isinstance(outcome, Refusal), outcome
        return outcome

    def cancel(self, ticket: int) -> None:
        self._cancelled.add(ticket)
        self.handle(RequestCancelled(ticket))

    def join(
        self,
        rank: int = -1,
        world_size: int = 0,
        *,
        job: str = "j",
        window: float = 0.0,
        label: str = "",
        elastic: bool = False,
        max_members: int = 0,
        pid_namespace: str = "",
        exit_is_reported: bool = False,
        process: int | None = None,
    ) -> int:
        """Open a session for a worker; return the session's number.

        The worker is a new process, or that of the session with number `process`.
        """
        session = next(self._sessions)
        self._unread[session] = []
        process = session if process is None else process
        join = Join(
            job=job,
            rank=rank,
            world_size=world_size,
            host=f"host{process}",
            pid=1000 + process,
            address=f"127.0.0.1:{5000 + process}",
            heartbeat_window=window,
            label=label,
            elastic=elastic,
            max_members=max_members,
            pid_namespace=pid_namespace,
            start_ticks=f"born{process}" if pid_namespace else "",
            exit_is_reported=exit_is_reported,
        )
        fresh = Randomness(f"member{session}", f"incarnation{session}", bytes([session % 256]) * 32)
        self.handle(SessionOpened(session, join, fresh))
        return session

    def resume(self, joined: Joined, *, job: str = "j", secret: bytes | None = None) -> int:
        """Resume the session of a member; return the new session's number."""
        session = next(self._sessions)
        self._unread[session] = []
        proof = prove_membership(
            joined.secret if secret is None else secret, joined.incarnation, joined.member_id
        )
        resume = Resume(job, joined.incarnation, joined.member_id, proof)
        self.handle(SessionResumed(session, resume))
        return session

    def restart(self) -> None:
        """Put a machine with the state of the commits in the place of this one."""
        self._broken.update(self._unread.keys() - self.ends.keys())
        self.machine = Machine(has_log=True)
        for commit in self.commits:
            self.machine.restore(commit, self.now)
        self.machine.finish_restore(self.now)

    def form_world(
        self,
        size: int,
        *,
        job: str = "j",
        window: float = 0.0,
        elastic: bool = False,
        max_members: int = 0,
        pid_namespace: str = "",
        exit_is_reported: bool = False,
    ) -> list[int]:
        """Form a world; return the sessions by rank, notifications read."""
        sessions = [
            self.join(
                rank,
                size,
                job=job,
                window=window,
                elastic=elastic,
                max_members=max_members,
                pid_namespace=pid_namespace,
                exit_is_reported=exit_is_reported,
            )
            for rank in range(size)
        ]
        for session in sessions:
            self.read_pushed(session)
        return sessions

    def send(self, session: int, message: MemberMessage, number: int = 0) -> None:
        self.handle(SessionMessage(session, message, number))

    def break_session(self, session: int) -> None:
        self._broken.add(session)
        self.handle(SessionBroken(session))

    def read_pushed(self, session: int) -> list[Notification]:
        """Return the notifications of a session since the last call."""
        unread, self._unread[session] = self._unread[session], []
        return unread

    def _check_effect(self, effect: Effect) -> None:
        match effect:
            case Answer(ticket, reply):
                self._conclude(ticket, reply)
            case Refuse(ticket, refusal):
                self._conclude(ticket, refusal)
            case Push(session, notification):
                assert session not in self.ends, f"pushed after its end: {effect}"
                assert session not in self._broken, f"pushed to a broken session: {effect}"
                self._unread[session].append(notification)
            case EndSession(session, refusal):
                assert session not in self.ends, f"ended twice: {effect}"
                assert session not in self._broken, f"ended after it broke: {effect}"
                self.ends[session] = refusal
            case InspectProcess():
                self.inspections.append(effect)
            case CheckConnection():
                self.connection_checks.append(effect)
            case Changed(changes):
                self.commits.append(changes)
                self.handle(CommitDurable())
            case OperatorLog(text):
                self.log.append(text)
            case JobEnded(job):
                self.log.append(f"job {job}: ended")
            case Drained():
                self.is_drained = True

    def _conclude(self, ticket: int, outcome: object) -> None:
        assert ticket not in self.outcomes, f"ticket {ticket} is concluded twice"
        assert ticket not in self._cancelled, f"ticket {ticket} was withdrawn"
        self.outcomes[ticket] = outcome
