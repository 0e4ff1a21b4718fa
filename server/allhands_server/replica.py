"""One of several daemons with one log: follows the leader, leads in its turn, follows again."""

import asyncio
import contextlib
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator

from allhands_proto.limited_log import LimitedLog
from allhands_server.coordinator import Coordinator
from allhands_server.leadership_status import LeadershipStatus
from allhands_server.log.change_codec import LogEntry, decode_changes, encode_changes
from allhands_server.log.engine import AppendResult, LogEngine, Slot, SlotTrimmed, Taken
from allhands_server.log.errors import (
    LogError,
    LogFull,
    LogTaken,
    LogUnavailable,
    LogUnwritable,
)
from allhands_server.log.frame import decode_frame, encode_frame, make_frame
from allhands_server.log.leader_journal import LeaderJournal
from allhands_server.log.recovery import LogHead, LogReader
from allhands_server.machine import Machine
from allhands_server.machine.changes import Change
from allhands_server.machine.formatting import escape_line
from allhands_server.machine.leadership import (
    Action,
    AppendBegun,
    AppendEmpty,
    AppendEnded,
    AppendLost,
    AppendTerm,
    Follow,
    FrameTailed,
    Lead,
    Leadership,
    LeadershipEvent,
    LogOpened,
    RefuseRequests,
    TakeRequests,
    Term,
    TermTailed,
    Tick,
)
from allhands_server.machine.refusals import Refusal, Status

logger = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.1
"""Between attempts: nothing tells of a service that comes back."""
_PRECEDENCE_SECONDS = 2.0
"""Head start of a leader's attempts over those of a candidate when a service has come back."""


class Replica:
    """A daemon among several; all methods belong to the running loop.

    The coordinator takes requests while this daemon leads, and sends clients to the leader
    meanwhile.
    """

    def __init__(
        self,
        engine: LogEngine,
        coordinator: Coordinator,
        address: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to follow; `address` is where clients reach this daemon.

        The engine is the replica's from now on.
        """
        self._engine = engine
        self._coordinator = coordinator
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._leadership = Leadership(secrets.token_hex(8), address)
        self._machine = Machine()
        self._reader = LogReader(self._restore, self._on_term)
        self._journal: LeaderJournal | None = None
        self._candidacy: asyncio.Future[Term] = self._loop.create_future()
        self._deposed: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._is_ready = False
        """Whether time counts: not while the log is read, or a term appended."""
        self._is_closing = False
        self._log = LimitedLog(logger, "failures of the log's service")
        self._follow(Follow(None, has_led=False))
        self._running = asyncio.create_task(self._run(), name="replica of the log")

    async def close(self) -> None:
        """Give up the leadership, so that another daemon leads at once; close the engine.

        After `Coordinator.close`. Idempotent.
        """
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        self._running.cancel()
        await asyncio.wait([self._running])
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.append((Term(self._leadership.number, "", ""),))
            await journal.stop()
        await self._engine.close()

    # ------------------------------------------------------------ the two roles

    async def _run(self) -> None:
        try:
            while True:
                await self._stand_by()
                await self._lead()
        except LogError as error:
            self._coordinator.on_lost(error)
        except Exception as error:  # else clients would be sent elsewhere for ever
            logger.exception("the coordinator's log cannot be followed")
            self._coordinator.on_lost(LogUnwritable(f"{type(error).__name__}: {error}"))

    async def _stand_by(self) -> None:
        """Follow the log, until this daemon's own term is in it."""
        is_read = False
        while True:
            if not is_read:
                await self._read_log()
                is_read = True
            term = await self._await_candidacy()
            if term is None:
                is_read = False
            elif await self._append_term(term):
                return

    async def _await_candidacy(self) -> Term | None:
        """Tail the log until nobody leads; return the term to append.

        None: frames were dropped that this daemon has not read.
        """
        self._candidacy = self._loop.create_future()
        tailing = asyncio.create_task(self._tail(), name="tail of the log")
        self._is_ready = True
        self._set_timer()
        try:
            await asyncio.wait((tailing, self._candidacy), return_when="FIRST_COMPLETED")
            if self._candidacy.done():
                return self._candidacy.result()
            return tailing.result()
        finally:
            self._is_ready = False
            tailing.cancel()
            await asyncio.wait([tailing])

    async def _read_log(self) -> None:
        """Read the state from the log, from the beginning."""
        while True:
            self._machine = self._coordinator.make_machine()
            self._reader = LogReader(self._restore, self._on_term)
            try:
                await self._reader.read(self._engine)
            except LogUnavailable as error:
                self._log.warning("cannot read the log, and try again: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            self._handle(FrameTailed(self._reader.head.term))
            self._handle(LogOpened())
            self._log_leader()
            return

    async def _tail(self) -> None:
        """Apply the frames of the leader as they come; return where some have been dropped."""
        while True:
            try:
                async for slot in self._engine.tail(self._reader.head.index + 1):
                    if slot.index != self._reader.head.index + 1:
                        return
                    self._apply(slot)
            except LogUnavailable as error:
                self._log.warning("cannot follow the log, and try again: %s", error)
            await asyncio.sleep(_PAUSE_SECONDS)

    def _apply(self, slot: Slot) -> None:
        self._reader.read_slot(slot)
        if self._leadership.leader is not None:
            self._handle(FrameTailed(self._reader.head.term))

    async def _append_term(self, term: Term) -> bool:
        """Append a term behind the log's end; return whether the slot is this daemon's."""
        head = self._reader.head
        frame = make_frame(term.number, head.index + 1, head.crc, encode_changes([term]))
        # An attempt that waits in the log's service could come before those of the leader.
        await self._let_leader_write(frame.index)
        self._handle(AppendBegun())
        result: AppendResult
        while True:
            try:
                result = await self._engine.append(frame.index, encode_frame(frame))
                break
            except SlotTrimmed:
                result = Taken(b"")  # others have written it long ago
                break
            except (LogUnavailable, LogFull) as error:
                self._log.warning("cannot become the leader, and try again: %s", error)
            await self._let_leader_write(frame.index)
        if isinstance(result, Taken):
            self._handle(AppendLost(_find_term(frame.index, result.data)))
            return False
        self._reader.head = LogHead(frame.index, frame.crc, frame.term)
        self._handle(AppendEnded())
        return True

    async def _let_leader_write(self, slot: int) -> None:
        """Wait until the log can be read; if it was away, for a leader to which it was as well."""
        was_away = False
        while True:
            try:
                is_free = not await self._engine.read(slot, 1)
            except LogUnavailable as error:
                self._log.warning("cannot become the leader, and try again: %s", error)
            else:
                if was_away and is_free:
                    await asyncio.sleep(_PRECEDENCE_SECONDS)
                return
            was_away = True
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _lead(self) -> None:
        """Lead until another daemon's term is in the log."""
        self._deposed = self._loop.create_future()
        self._machine.finish_restore(self._clock())
        journal = LeaderJournal(self._engine, self._reader.restored, self, self._handle)
        self._journal = journal
        self._coordinator.lead(self._machine, journal, self._may_answer)
        self._note_status()
        self._is_ready = True
        self._set_timer()
        logger.info("leads, in term %d", self._leadership.number)
        await self._deposed
        self._is_ready = False
        self._journal = None
        await journal.abandon()

    # ------------------------------------------------------------ the journal's owner

    def on_durable(self, commits: int) -> None:
        """See `JournalOwner`."""
        self._coordinator.on_durable(commits)

    def on_refused(self, error: LogFull) -> None:
        """See `JournalOwner`."""
        self._coordinator.on_refused(error)

    def on_lost(self, error: LogError) -> None:
        """See `JournalOwner`."""
        if self._is_closing:
            logger.warning("the leadership ends without notice to the other daemons: %s", error)
        elif isinstance(error, LogTaken):
            self._handle(AppendLost(_find_term(error.slot, error.data)))
        else:
            self._coordinator.on_lost(error)

    def copy_state(self) -> Iterator[LogEntry]:
        """See `JournalOwner`."""
        leader = self._leadership.leader
        terms = [] if leader is None else [leader]
        return itertools.chain(terms, self._coordinator.copy_state())

    # ------------------------------------------------------------ leadership

    def _may_answer(self) -> bool:
        return self._leadership.may_answer(self._clock())

    def _restore(self, changes: Iterable[Change]) -> None:
        self._machine.restore(changes, self._clock())

    def _on_term(self, term: Term) -> None:
        self._handle(TermTailed(term))

    def _handle(self, event: LeadershipEvent) -> None:
        for action in self._leadership.handle(event, self._clock()):
            self._act(action)
        self._set_timer()

    def _act(self, action: Action) -> None:
        match action:
            case AppendTerm(term):
                self._candidacy.set_result(term)
                self._note_status()
            case AppendEmpty():
                if self._journal is not None:
                    self._journal.request_frame()
            case Lead():
                pass  # the state opens as soon as the term's append has returned
            case Follow():
                self._follow(action)
            case RefuseRequests():
                assert self._journal is not None
                why = self._journal.failure or "no write has ended in time"
                text = f"the coordinator's log is away, try again later: {why}"
                self._coordinator.refuse_requests(Refusal(Status.UNAVAILABLE, text))
                logger.error("%s", text)
            case TakeRequests():
                logger.info("the coordinator's log is there again")
                self._coordinator.take_requests()

    def _follow(self, action: Follow) -> None:
        leader = action.leader
        if leader is None:
            text = "this daemon does not lead, and knows of no leader yet: try again"
            refusal = Refusal(Status.UNAVAILABLE, text, "")
        else:
            text = f"this daemon does not lead: the leader is {leader.address}"
            refusal = Refusal(Status.UNAVAILABLE, text, leader.address)
        self._coordinator.follow(refusal)
        self._note_status()
        if self._is_ready:
            self._log_leader()
        if action.has_led and not self._deposed.done():
            self._deposed.set_result(None)

    def _log_leader(self) -> None:
        if (leader := self._leadership.leader) is not None:
            logger.info("follows %s, in term %d", escape_line(leader.address), leader.number)

    def _note_status(self) -> None:
        known = self._leadership
        address = "" if known.leader is None else known.leader.address
        self._coordinator.leadership = LeadershipStatus(known.role.value, address, known.number)

    def _set_timer(self) -> None:
        """Set the timer to the next due time; one that is set for earlier stays."""
        due = self._leadership.next_due
        if due is None or self._is_closing:
            return
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_later(max(0.0, due - self._clock()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._is_ready:
            self._handle(Tick())


def _find_term(slot: int, data: bytes) -> Term | None:
    """Return the term in another daemon's frame."""
    with contextlib.suppress(LogError):
        for entry in decode_changes(decode_frame(data, slot).payload, slot):
            if isinstance(entry, Term):
                return entry
    return None
