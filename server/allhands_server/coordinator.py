"""Asyncio shell around the machine: clock, randomness, pending answers, session streams."""

import asyncio
import itertools
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

from allhands_proto import process
from allhands_server.evidence_search import EvidenceSearch
from allhands_server.held_effects import HeldEffects
from allhands_server.leadership_status import LeadershipStatus
from allhands_server.machine import Machine
from allhands_server.machine.call_rates import CallRates
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
    LeaseTimed,
    OperatorLog,
    Push,
    Refuse,
)
from allhands_server.machine.events import (
    AuthenticationFailed,
    CommitDurable,
    CommitsRefused,
    Drain,
    Event,
    Origin,
    Randomness,
    RequestCancelled,
    RequestReceived,
    SessionBroken,
    SessionMessage,
    SessionOpened,
    SessionResumed,
    Tick,
)
from allhands_server.machine.formatting import escape_line
from allhands_server.machine.limit_use import LimitUse
from allhands_server.machine.measurements import Measurements
from allhands_server.machine.member_messages import Join, MemberMessage, Resume
from allhands_server.machine.refusals import Refusal, Refused, Status
from allhands_server.machine.requests import AwaitVerdict, MonitoredBarrier, R, Request
from allhands_server.machine.tokens import Tokens
from allhands_server.machine.values import JobObservation
from allhands_server.machine_timer import MachineTimer
from allhands_server.reply_handler import FutureReply, ReplyHandler
from allhands_server.resource_limits import DEFAULT_LIMITS, ResourceLimits
from allhands_server.session_stream import ConditionMerger, SessionStream

if TYPE_CHECKING:
    from allhands_server.lease_times import LeaseTimes
    from allhands_server.log.engine import LogEngine
    from allhands_server.log.errors import LogError, LogFull
    from allhands_server.log.journal import Journal

logger = logging.getLogger(__name__)

# Seconds before a caller's deadline at which it is answered, or a part of what remains if that is
# less. Who waits for a verdict does so for longer than until the deadline that it names.
_MARGIN = 0.05
_MARGIN_PART = 0.1
_OVER = Refusal(Status.UNAVAILABLE, "the coordinator has gone down")
_NOT_KNOWN = Refusal(
    Status.UNAVAILABLE,
    "this daemon does not lead any more: whether the request was carried out is not known",
)
_NOT_LEFT = Refusal(Status.ABORTED, "the stream of the session ended without a Leave")
_EVERYDAY = {Status.DEADLINE_EXCEEDED, Status.NOT_FOUND, Status.UNAVAILABLE}


class Coordinator:
    """A machine with its clients; all methods belong to the running loop."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        has_log: bool = False,
        limits: ResourceLimits = DEFAULT_LIMITS,
    ) -> None:
        """Make a coordinator without a log; `open` makes one with a log."""
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self.limits = limits
        self.rates = CallRates(limits)
        self.is_durable = has_log
        """Whether a coordinator started after this one has its state."""
        self._machine = self.make_machine()
        self._journal: Journal | None = None
        self._lease_times: LeaseTimes | None = None
        self._held = HeldEffects()
        self._writers: set[int] = set()
        """Tickets of requests with changes that may not be durable."""
        self._may_answer: Callable[[], bool] = lambda: True
        self._gate: Refusal | None = None
        """Refusal of all requests and joins; None: they are taken."""
        self._is_standby = False
        """Whether another daemon has the sessions and requests."""
        self.leadership: LeadershipStatus | None = None
        """Who leads; None: this daemon is alone with its log."""
        self.failure: asyncio.Future[LogError] = self._loop.create_future()
        """Done when the log is gone, and the coordinator closed for it."""
        self._tickets = itertools.count(1)
        self._sessions = itertools.count(1)
        self._pending: dict[int, ReplyHandler] = {}
        self.refusals: Counter[Status] = Counter()
        """Requests that were refused, by status."""
        self._streams: dict[int, SessionStream] = {}
        self._merger = ConditionMerger()
        self._timer = MachineTimer(clock, lambda: self._handle(Tick()))
        self._evidence = EvidenceSearch(self._handle, self._streams)
        self._drained = asyncio.Event()
        self._is_draining = False
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        engine: "LogEngine",
        lease_times: "LeaseTimes | None" = None,
        limits: ResourceLimits = DEFAULT_LIMITS,
    ) -> "Coordinator":
        """Return a coordinator with the state in a log, and go on writing the log.

        The engine is the coordinator's from now on, and so are the times of leases; without these
        all leases begin their time again.

        Raises:
            LogError: the log cannot be read, or is not as it was acknowledged.
        """
        # Not at the top: ranks host coordinators without a log.
        from allhands_server.log.journal import Journal
        from allhands_server.log.recovery import read_log

        coordinator = cls(has_log=True, limits=limits)
        machine, clock = coordinator._machine, coordinator._clock
        restored = await read_log(engine, lambda changes: machine.restore(changes, clock()))
        remaining = {} if lease_times is None else lease_times.find_remaining()
        machine.finish_restore(clock(), remaining)
        coordinator._lease_times = lease_times
        coordinator._journal = Journal(engine, restored, coordinator)
        return coordinator

    def make_machine(self) -> Machine:
        """Return a machine without any state, with the limits of this coordinator."""
        return Machine(process.get_pid_namespace(), self.is_durable, self.limits)

    def describe_limits(self) -> list[LimitUse]:
        """Return the limits, with how much is used of each; a follower uses nothing."""
        return self._machine.describe_limits()

    @property
    def leads(self) -> bool:
        """Whether requests are carried out here, and not by another daemon."""
        return not self._is_closed and not self._is_standby

    def find_obstacle(self) -> str:
        """Return why requests are not taken; empty: they are, or clients are sent to the leader.

        No addresses or names: strangers may read it.
        """
        if self._is_closed:
            return "the coordinator has gone down"
        if self._is_draining:
            return "the coordinator drains, and takes in nobody"
        if self._is_standby:
            is_known = self.leadership is not None and self.leadership.leader
            return "" if is_known else "the daemon stands by, and knows of no leader yet"
        return "" if self._gate is None else "the coordinator's log is away"

    @property
    def clock_offset(self) -> float:
        """Seconds to add to the machine's times for those of the wall clock."""
        return time.time() - self._clock()

    def measure(self) -> Measurements:
        """Return the numbers of jobs and requests; a follower has none."""
        return self._machine.measure(self._clock())

    def observe(self, job: str, after: int) -> JobObservation | None:
        """Return a job at this moment, with its events behind a number; None: there is none."""
        return self._machine.observe(job, after, self._clock())

    def check_serving(self) -> None:
        """Refuse where requests are not taken.

        Raises:
            Refused: says why, and which daemon leads.
        """
        if self._gate is not None:
            raise Refused(self._gate.status, self._gate.text, self._gate.leader)

    @property
    def journal(self) -> "Journal | None":
        """Writer of the log; None: there is no log, or another daemon writes it."""
        return self._journal

    async def ask(
        self, request: Request[R], time_remaining: float | None, origin: Origin | None = None
    ) -> R:
        """Return the answer; the refusal of a wait comes a hair before the time is over.

        Cancellation of the caller cancels the request. `time_remaining` None: wait without end.

        Raises:
            Refused: by the machine, or because the coordinator closes.
        """
        answer: asyncio.Future[R] = self._loop.create_future()
        ticket = self.new_ticket()
        self.post(ticket, request, time_remaining, FutureReply(answer), origin)
        try:
            return await answer
        except asyncio.CancelledError:
            self.cancel(ticket)
            raise

    def new_ticket(self) -> int:
        """Return an unused number for a request."""
        return next(self._tickets)

    def post(
        self,
        ticket: int,
        request: Request[R],
        time_remaining: float | None,
        asker: ReplyHandler,
        origin: Origin | None = None,
    ) -> None:
        """Submit a request under a new ticket; `asker` is called at once or with the answer.

        For many small requests this costs less than `ask`. With an `origin` its effect takes place
        once, however often it is submitted.
        """
        if self._gate is not None:
            self.refusals[self._gate.status] += 1
            asker.on_refusal(ticket, self._gate)
            return
        now = self._clock()
        due = None
        if time_remaining is not None:
            due = now + time_remaining
            if not isinstance(request, AwaitVerdict | MonitoredBarrier):
                part = time_remaining * _MARGIN_PART
                due -= part if part < _MARGIN else _MARGIN
        self._pending[ticket] = asker
        effects = self._machine.handle(RequestReceived(ticket, request, due, origin), now)
        if self._journal is not None and effects and isinstance(effects[0], Changed):
            self._writers.add(ticket)
        self._carry_out(effects)

    def cancel(self, ticket: int) -> None:
        """Cancel a request; the reply handler is not called. Idempotent."""
        if self._pending.pop(ticket, None) is not None:
            self._handle(RequestCancelled(ticket))

    def is_being_logged(self, ticket: int) -> bool:
        """Return whether a pending request has made changes that wait for the log."""
        return ticket in self._writers

    @property
    def tokens(self) -> Tokens | None:
        """Tokens for jobs, for checks alone; None: a follower does not know them."""
        if self.leadership is not None and self.leadership.role != "leader":
            return None
        return self._machine.tokens

    def join(self, join: Join, peer: str = "", token: str = "") -> SessionStream:
        """Open a session for a peer; the stream reports whether the Join was accepted.

        `token` is the id of the peer's token, if it is not the cluster's own.
        """
        stream = SessionStream(next(self._sessions), peer, self._merger)
        if self._gate is not None:
            stream.put(EndSession(stream.number, self._gate))
            return stream
        self._streams[stream.number] = stream
        fresh = Randomness(secrets.token_hex(8), secrets.token_hex(8), secrets.token_bytes(32))
        at = time.time() if token else 0.0
        self._handle(SessionOpened(stream.number, join, fresh, token, at))
        return stream

    def resume(self, resume: Resume, peer: str = "") -> SessionStream:
        """Resume a member's session; the stream reports whether that was accepted."""
        stream = SessionStream(next(self._sessions), peer, self._merger)
        if self._gate is not None:
            stream.put(EndSession(stream.number, self._gate))
            return stream
        self._streams[stream.number] = stream
        self._handle(SessionResumed(stream.number, resume))
        return stream

    def on_message(self, session: int, message: MemberMessage, number: int = 0) -> None:
        """Pass a member's message to the machine; not 0: its number, to be acknowledged."""
        self._handle(SessionMessage(session, message, number))

    def on_authentication_failed(self, address: str, why: str) -> None:
        """Note a session refused for a missing or wrong token."""
        self._handle(AuthenticationFailed(address, why))

    def on_session_broken(self, session: int, told: Refusal = _NOT_LEFT) -> None:
        """Note the end of a session's stream, and send the member the refusal. Idempotent."""
        if (stream := self._streams.pop(session, None)) is not None:
            self._handle(SessionBroken(session))
            stream.put(EndSession(session, told))

    async def drain(self, reason: str, timeout: float) -> bool:
        """Refuse new members and wait for running worlds; return whether all ended in time.

        A reason is told to the members.
        """
        self._is_draining = True
        if self._is_closed or self._is_standby:
            return True
        self._handle(Drain(reason))
        try:
            async with asyncio.timeout(timeout):
                await self._drained.wait()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Refuse all pending requests and end all sessions. Idempotent."""
        self._is_closed = True
        self._let_go(_OVER, _OVER)

    def _let_go(self, refusal: Refusal, pending_refusal: Refusal) -> None:
        """Refuse all requests, pending and to come, and end all sessions."""
        self._gate = refusal
        self._evidence.cancel()
        self._timer.cancel()
        pending, self._pending = self._pending, {}
        for ticket, asker in pending.items():
            asker.on_refusal(ticket, pending_refusal)
        streams = list(self._streams.values())
        self._streams.clear()
        for stream in streams:
            stream.put(EndSession(stream.number, refusal))

    async def close_log(self) -> None:
        """Write the pending commits, and close the log; after `close`. Idempotent."""
        if self._journal is not None:
            await self._journal.close()
        if self._lease_times is not None:
            self._lease_times.close()

    # ------------------------------------------------------------ several daemons, one log

    def follow(self, refusal: Refusal) -> None:
        """Let go of sessions and requests for another daemon; refuse those to come."""
        if self._is_closed:
            return
        self._is_standby = True
        self._let_go(refusal, _NOT_KNOWN)
        self._evidence.forget_all()
        self._held = HeldEffects()
        self._journal = None

    def lead(self, machine: Machine, journal: "Journal", may_answer: Callable[[], bool]) -> None:
        """Take sessions and requests with the state in a machine, and write to a journal.

        Answers leave while `may_answer` returns True.
        """
        if self._is_closed:
            return
        self._machine, self._journal, self._may_answer = machine, journal, may_answer
        self._is_standby, self._gate = False, None
        self._set_timer()

    def refuse_requests(self, refusal: Refusal) -> None:
        """Refuse the requests whose answers wait for the log, and those to come.

        Sessions stay, and what is to be written will be.
        """
        if self._is_closed:
            return
        self._gate = refusal
        for effect in self._held.drop_effects():
            if isinstance(effect, Answer | Refuse):
                self._act(Refuse(effect.ticket, refusal))
            else:
                self._act(effect)

    def take_requests(self) -> None:
        """Take requests again."""
        if not self._is_closed:
            self._gate = None

    # ------------------------------------------------------------ the log

    def on_durable(self, commits: int) -> None:
        """See `JournalOwner`."""
        for _ in range(commits):
            self._handle(CommitDurable())
        self._held.note_durable(commits)
        if self._held.is_settled:
            self._writers.clear()
        if self._may_answer():
            for effect in self._held.release():
                self._act(effect)

    def on_refused(self, error: "LogFull") -> None:
        """See `JournalOwner`."""
        logger.error("nothing can be written: %s", error)
        of_writes = Refusal(Status.FAILED_PRECONDITION, f"the coordinator's log is full: {error}")
        of_reads = Refusal(
            Status.UNAVAILABLE,
            "the coordinator's log is full, and changes that the answer has seen were taken back: "
            f"ask again ({error})",
        )
        for effect in self._held.drop():
            if isinstance(effect, Answer | Refuse):  # a refusal too: it may say what is taken back
                is_write = effect.ticket in self._writers
                self._act(Refuse(effect.ticket, of_writes if is_write else of_reads))
            else:
                self._act(effect)
        self._writers.clear()
        self._handle(CommitsRefused())

    def on_lost(self, error: "LogError") -> None:
        """See `JournalOwner`."""
        logger.critical("the coordinator ends, as its log is gone: %s", error)
        refusal = Refusal(Status.UNAVAILABLE, f"the coordinator's log is gone: {error}")
        for effect in self._held.drop():
            if isinstance(effect, Answer | Refuse):
                self._act(Refuse(effect.ticket, refusal))
        self.close()
        if not self.failure.done():
            self.failure.set_result(error)

    def copy_state(self) -> Iterator[Change]:
        """See `JournalOwner`."""
        return self._machine.list_changes()

    async def make_snapshot(self) -> AsyncIterator[bytes]:
        """Return the bytes of a snapshot file with the durable state of now, piece by piece.

        Raises:
            Refused: the log is full or gone, or another daemon leads.
        """
        from allhands_server.saved_state import encode_state  # which few coordinators need

        return await encode_state(self._gate, self._journal, self._machine)

    # ------------------------------------------------------------ acting for the machine

    def _handle(self, event: Event) -> None:
        if self._is_closed or self._is_standby:
            return
        self._carry_out(self._machine.handle(event, self._clock()))

    def _carry_out(self, effects: list[Effect]) -> None:
        """Carry out the effects of one event; some wait for the commits before them."""
        if self._journal is None:
            for effect in effects:
                self._act(effect)
        else:
            for effect in effects:
                if isinstance(effect, Changed):
                    self._held.note_commit()
                    self._journal.append(effect.changes)
                elif not self._held.hold(effect, may_answer=self._may_answer()):
                    self._act(effect)
        self._set_timer()

    def _act(self, effect: Effect) -> None:
        match effect:
            case Answer(ticket, reply):
                if (asker := self._pending.pop(ticket, None)) is not None:
                    asker.on_answer(ticket, reply)
            case Refuse(ticket, refusal):
                self.refusals[refusal.status] += 1
                if refusal.status not in _EVERYDAY:
                    logger.info("refused a request: %s", escape_line(refusal.text))
                if (asker := self._pending.pop(ticket, None)) is not None:
                    asker.on_refusal(ticket, refusal)
            case Push(session, notification):
                self._streams[session].put(notification)
            case EndSession(session):
                self._streams[session].put(effect)
            case InspectProcess() | CheckConnection():
                self._evidence.note(effect)
            case OperatorLog(text, of_failure, job):
                extra = {"of_failure": of_failure, "job": job}
                logger.info("%s", escape_line(text), extra=extra)
            case JobEnded(job):
                logger.info("job %s: ended", job, extra={"job": job})
            case LeaseTimed(job, lease, due):
                if self._lease_times is not None:
                    self._lease_times.note(job, lease, due - self._clock())
            case Changed():
                raise AssertionError("a coordinator without a log has commits")
            case Drained():
                self._drained.set()

    def _set_timer(self) -> None:
        """Set the timer to the machine's next due time.

        First it is told what it asked for that is seen at once: a timer may be overdue by then.
        """
        self._evidence.look()
        self._timer.set(self._machine.next_due)
