"""One process in one world: its port, its session, its links, its groups."""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from allhands.collectives.algorithms.cost import Wire
from allhands.collectives.hierarchical_plan import Layout, islands
from allhands.collectives.signature import group_hash
from allhands.config import WorldConfig
from allhands.coordinator import report_codec
from allhands.coordinator.attempts import RETRY_SECONDS, Attempts
from allhands.coordinator.endpoint import Dial, dial
from allhands.coordinator.rendezvous import Meeting, meet
from allhands.coordinator.session import OF_THE_WORLD, Member, Session, introduced
from allhands.engine.failures import call_errors
from allhands.engine.failures.call_errors import Failure
from allhands.engine.failures.tracker import first
from allhands.engine.group_engine import GroupEngine, Position
from allhands.engine.links.pings import SILENT_SECONDS, Pings
from allhands.errors import (
    AllhandsError,
    CoordinatorUnavailable,
    GroupAborted,
    MembershipChanged,
    PeerFailed,
    Unauthenticated,
)
from allhands.membership import advertised_address, local_verdict
from allhands.membership.link_probe import gauge
from allhands.membership.reform import Proposal, Reformed
from allhands.recorder.dump import Dumper
from allhands.recorder.record import OperationRecord, by_time
from allhands.runtime import native_core, stack_dump
from allhands.runtime.exit_notice import LAUNCH_VARIABLE, Cause, announce_cause, announce_end
from allhands.shm.areas import Grounds
from allhands.shm.arena import Announcement, Arena
from allhands.transport.frame import FrameError, Key, Kind
from allhands.transport.handshake import Identity
from allhands.transport.mesh import Mesh
from allhands.transport.ports import Ports
from allhands.verdicts import AbsentRank, CallCancellation, Verdict
from allhands_proto import forks, notice, process, stack_channel
from allhands_proto.v1 import coordinator_pb2 as wire

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)

WORLD = "world"
_ANSWER_SECONDS = 0.25
"""How long peers may take to answer a ping where the coordinator cannot be asked about them."""
_MOST_ASKED = 64
"""Ranks of a group that are all pinged then; in larger ones those that are waited for."""
_SILENCE_SECONDS = 0.6
"""After a call's deadline, until the coordinator is taken to say nothing."""
_LAST_WORDS = 0.5
"""Seconds for the messages of a rank that leaves because of an error: the others wait for it."""
_PARTING_SECONDS = 0.5
"""How long a rank that has left waits for the others to close their links to it."""
_ENDING_SECONDS = 0.3
"""How long a process that ends may still be there when its links are closed."""
_ENDED_GROUPS = 256
"""Closed groups of which a rank that leaves says what it completed there, the latest ones."""
_EARLY = 256
"""What peers said of calls of groups that are not open here yet, the latest of it."""
_LOOK_SECONDS = 0.01
_KEPT_OPERATIONS = 256
"""Calls of all groups in a rank's last report: putting them into words takes about 10 ms."""
_WORD_SECONDS = 1.5
"""How long a coordinator that is there may take to say what became of a peer."""


class Worker:
    """Everything of one membership; lives on one loop, and is called there only.

    It is the registry of its engines, and the listener of its mesh and its session.
    """

    def __init__(
        self, config: WorldConfig, meeting: Meeting, ports: Ports, session: Session
    ) -> None:
        self.config = config
        self.rank = session.joined.rank
        self.members = {member.rank: member for member in session.members}
        self.meeting = meeting
        self._ports = ports
        self._session = session
        self._mesh = Mesh(self, session.joined.secret, session.joined.rank)
        self._pings = Pings(self._mesh, self._tell_silent, self._tell_answers)
        self._engines: dict[str, GroupEngine] = {}
        self._ended: dict[str, Position] = {}  # where this rank was in groups it has closed
        self._gone: set[int] = set()
        self._left: set[int] = set()
        self._aborted: set[str] = set()  # groups; all of them as ""
        self._events: list[Callable[[GroupEngine], None]] = []
        """What befell the world, in the order in which it was heard of: each tells an engine."""
        self._early: deque[tuple[int, int, Callable[[GroupEngine], None]]] = deque(maxlen=_EARLY)
        """What peers said of calls of groups not open here yet: of which, by its hash, and who."""
        self._has_told_cause = False
        self._cries: list[tuple[Sequence[int], Key, bytes]] = []  # own aborts
        self._space = process.space()
        self._coordinator_gone = asyncio.Event()
        self._answers: dict[int, wire.Heartbeat] = {}  # of peers that were pinged
        self._answered = asyncio.Event()
        self._ponged: dict[int, float] = {}  # when peers answered a ping last
        self._ruled: set[str] = set()
        self._conditions: dict[int, AbsentRank] = {}  # of ranks that are silent though they live
        self._vouching: set[asyncio.Task[None]] = set()
        self._expelled: str | None = None
        self._opinions: dict[int, asyncio.Task[None]] = {}
        self._closed = False
        self._failed_at: tuple[Sequence[wire.Progress], str] | None = None
        """Where this rank and its program were at the first failure since a group went on."""
        self.stack: Callable[[], str] = stack_dump.main_thread
        """Says where the program is; see `SessionListener`."""
        self.waiting = 0
        """Workers that wait to be taken in by a grow."""
        self._arena: Arena | None = None
        self._wire: Wire | None = None
        self._dumper = Dumper(
            config.dump_on_failure, config.job, self.rank, len(self.members), self.records
        )
        self.world: GroupEngine
        """Of the group of all ranks."""
        forks.hold(self)

    @classmethod
    async def start(cls, config: WorldConfig) -> "Worker":
        """Meet, listen, join; return when the world is complete.

        Raises:
            AllhandsError: the world did not come about; what each error says.
        """
        begun = time.monotonic()
        arena, absence = _arena(config)
        given = await advertised_address.given(config)
        meeting = await meet(config)
        ports = Ports("grpc" if config.backend == "grpc" else "socket", config.ports)
        try:
            request = wire.Join(
                job=config.job,
                rank=config.rank,
                world_size=config.world_size,
                host=socket.gethostname(),
                pid=os.getpid(),
                heartbeat_window=config.heartbeat_window,
                label=config.label,
                hosts_coordinator=meeting.hosted is not None,
                memory="" if arena is None else str(arena.announcement),
                elastic=config.is_elastic,
                max_members=config.max_size,
                pid_namespace=process.space(),
                start_ticks=notice.born(os.getpid()),
                exit_is_reported=LAUNCH_VARIABLE in os.environ,
                stack_channel=stack_channel.open_channel(),
            )

            async def listen(dial: Dial, timeout: float) -> None:
                """Listen once it is known where, and let the request say so."""
                if ports.port:
                    return
                where = given or await advertised_address.found(
                    config, meeting.endpoint, dial, timeout
                )
                await ports.start(where.listen)
                request.port, request.data_port = ports.port, ports.data_port
                request.advertise = where.advertise

            session = await _join(config, meeting, request, listen, begun + config.timeout)
        except BaseException:
            await ports.aclose()
            if meeting.hosted is not None:
                await meeting.hosted.stop(0)
            raise
        joined = session.joined
        worker = cls(config, meeting, ports, session)
        worker._arena = arena
        beside = [one.rank for one in session.members if one.host == request.host]
        if absence and joined.rank == min(beside) and len(beside) > 1:
            logger.warning("%s", absence)  # once a host
        if arena is not None:
            arena.map(joined.rank, {one.rank: (one.pid, one.memory) for one in session.members})
        fabric = ports.fabric(worker._identity(), session.members, worker._mesh, worker.name)
        worker._mesh.attach(fabric)
        ranks = [one.rank for one in session.members]
        # Ranks of a group that has changed are numbered anew.
        name, named = (session.group, range(len(ranks))) if session.group else (WORLD, None)
        worker.world = await worker.open_group(name, ranks, named=named)
        session.start(worker)
        try:
            await worker._gauge(worker.world)
        except BaseException as error:
            await worker.leave(f"{type(error).__name__}: {error}")
            raise
        logger.info(
            "joined job %s as rank %d of %d, epoch %d",
            config.job,
            worker.rank,
            len(session.members),
            session.epoch,
        )
        return worker

    def forked(self) -> None:
        """Refuse all calls in a forked child, which is no member."""
        for engine in self._engines.values():
            engine.order.forked()

    @property
    def epoch(self) -> int:
        """The membership's version, as far as this worker has heard."""
        return self._session.epoch

    async def open_group(
        self,
        name: str,
        ranks: Sequence[int],
        timeout: float | None = None,
        named: Sequence[int] | None = None,
        verify: bool | None = None,
    ) -> GroupEngine:
        """Make the engine of a group that this rank belongs to; `GroupEngine` has `named`.

        `verify` None: as the world has it.
        """
        ranks = tuple(ranks)
        layout = self._layout(ranks)
        grounds = self._grounds(name, ranks)
        if layout is not None:
            grounds = self._grounds(f"{name}/island", [ranks[rank] for rank in layout.mine])
        if (grounds is None or layout is not None) and self.config.backend == "shm":
            raise AllhandsError(
                f"group {name!r} has ranks that cannot share memory with this one, and "
                "backend='shm' allows nothing else: use backend='auto'"
            )
        engine = GroupEngine(
            name,
            ranks,
            ranks.index(self.rank),
            self._mesh,
            self,
            timeout=timeout or self.config.timeout,
            deterministic=self.config.deterministic,
            grounds=grounds,
            layout=layout,
            allocate=self._scratch,
            named=named,
            recorder_size=self.config.recorder_size,
            verify=self.config.verify if verify is None else verify,
            more_grounds=lambda: self._grounds(f"{name}/steps", ranks),
        )
        engine.wire = self._wire
        engine.recording.on_failure = self._dumper.failed
        self._engines[name] = engine
        self._ended.pop(name, None)
        for tell in self._events:
            tell(engine)
        early, self._early = self._early, deque(maxlen=_EARLY)
        for group, peer, tell in early:
            self._tell_group(peer, group, tell)
        await self._session.open_group(name, ranks)
        return engine

    def is_open(self, name: str) -> bool:
        """Say whether there is a group of this name here; any thread."""
        return name in self._engines

    def groups(self) -> dict[str, tuple[int, ...]]:
        """Return the job's ranks in each group that is open here; any thread."""
        return {name: tuple(engine.ranks) for name, engine in list(self._engines.items())}

    def allocate(self, nbytes: int) -> "memoryview | bytearray":
        """Return zeroed memory that the ranks of this host share, where there is any."""
        if self._arena is None:
            return bytearray(nbytes)
        return memoryview(self._arena.heap.allocate(nbytes))[:nbytes]

    def _scratch(self, nbytes: int) -> "memoryview | bytearray":
        """Return memory that the ranks of this host share, or any where that is used up."""
        try:
            return self.allocate(nbytes)
        except MemoryError:
            return bytearray(nbytes)

    def _grounds(self, name: str, ranks: Sequence[int]) -> Grounds | None:
        """Return a share of memory under that name to ranks of this host; None: there is none."""
        return None if self._arena is None else self._arena.open(group_hash(name), ranks)

    async def failure(self, name: str) -> AllhandsError | None:
        """Return why calls on a group fail from now on; None: nothing is known."""
        engine = self._engines.get(name)
        return _destroyed(f"a call of group {name!r}") if engine is None else engine.failure()

    async def close_group(self, name: str, why: Failure | None = None) -> None:
        """Forget a group once its calls have ended; those to come say `why`, whatever befell it."""
        engine = self._engines.get(name)
        if engine is not None:
            await engine.idle()
            self._ended[name] = engine.position
            while len(self._ended) > _ENDED_GROUPS:
                del self._ended[next(iter(self._ended))]
            engine.end(why) if why is not None else engine.shut(_destroyed)
            gone = self._gone | self._left
            engine.close(gone)
            del self._engines[name]
            if self._arena is not None:
                for rank in gone.intersection(engine.ranks):
                    if not any(rank in other.ranks for other in self._engines.values()):
                        self._arena.forget(rank)
            await self._session.close_group(name)

    # ------------------------------------------------------------ going on after failures

    async def reform(self, group: str, proposal: Proposal, timeout: float) -> Reformed:
        """Decide with the other present ranks of a group; the errors are those of the session."""
        told = await self._session.reform(
            wire.GroupChangeRequest(
                group=group,
                kind=proposal.kind,
                flag=proposal.flag,
                wanted=proposal.wanted,
                returned=proposal.returned,
                computed=proposal.computed,
            ),
            timeout,
        )
        members = tuple(map(introduced, told.members))
        newcomers = [one for one in members if one.rank not in self.members]
        if newcomers:
            self._introduce(newcomers)
        ranks = tuple(one.rank for one in members)
        return Reformed(told.flag, told.epoch, told.group, ranks, told.committed, bool(newcomers))

    async def regroup(self, decided: Reformed, timeout: float) -> GroupEngine:
        """Make the engine of the group that goes on."""
        self._failed_at = None
        named = range(len(decided.ranks))
        engine = await self.open_group(decided.group, decided.ranks, timeout, named)
        if self._has_told_cause:
            self._has_told_cause = False
            announce_cause(os.environ, None)
        if decided.has_newcomers:
            # They have measured nothing yet, and all must choose alike.
            engine.wire = None
            with contextlib.suppress(PeerFailed):  # its first call will say so
                await self._gauge(engine)
        return engine

    def _introduce(self, newcomers: Sequence[Member]) -> None:
        """Take in ranks that came while the world ran."""
        self.members.update((one.rank, one) for one in newcomers)
        self._ports.introduce(self._identity(), newcomers)
        if self._arena is not None:
            told = {one.rank: (one.pid, one.memory) for one in newcomers}
            self._arena.map(self.rank, told)

    def _identity(self) -> Identity:
        joined = self._session.joined
        return Identity(
            job=self.config.job,
            incarnation=joined.incarnation,
            secret=joined.secret,
            member=joined.member_id,
            rank=joined.rank,
            world_size=max(self.members) + 1,
        )

    async def leave(self, error: str = "", traceback: str = "", aborts: bool = False) -> None:
        """End the membership; what was sent before is received first, unless it ends in error.

        With `aborts` the others are told that this ends their groups with this rank, and why. Where
        this process hosts the coordinator it stays until the others have left. Idempotent.
        """
        if self._closed:
            return
        self._closed = True
        for task in (*self._opinions.values(), *self._vouching):
            task.cancel()
        self._pings.close()
        if not error and self._expelled is None:
            await self._idle()
        at_end = self.progress(), ""

        def closed(what: str) -> AllhandsError:
            return AllhandsError(f"{what} cannot run: this rank has left the group")

        for engine in self._engines.values():
            engine.shut(closed)
        await self._idle()
        try:
            # What this rank has completed the others can only end with all that it has sent.
            async with asyncio.timeout(_LAST_WORDS if error else self.config.timeout):
                await self._mesh.drain()
        except TimeoutError:
            logger.warning("left with messages that nobody has taken in")
        report, nbytes = b"", self._session.report_nbytes
        if nbytes and self._expelled is None and not self._coordinator_gone.is_set():
            report = self._last_report(self._failed_at or at_end, nbytes)
        announce_end(os.environ, failing=bool(error))
        await self._session.leave(
            wire.Leave(
                # Of closed groups too: others may be in the last calls of those yet.
                progress=[*self.progress(), *(_progress(*one) for one in self._ended.items())],
                error=error,
                traceback=traceback,
                aborts=aborts,
                report=report,
            )
        )
        for engine in self._engines.values():
            engine.close()
        await self._ports.deserted(_PARTING_SECONDS)
        await self._mesh.aclose()
        await self.meeting.aclose()

    # ------------------------------------------------------------ Registry

    def name(self, rank: int) -> str:
        return str(self.members.get(rank, f"rank {rank}"))  # one that is not introduced yet

    async def judge(
        self, group: str, sequence: int, operation: str, waiting_on: Sequence[int], timeout: float
    ) -> Verdict | CallCancellation | None:
        deadline = time.monotonic() + timeout
        found = None
        try:
            async with asyncio.timeout(max(timeout, 0) + _SILENCE_SECONDS):
                found = await self._session.judge(group, sequence, operation, waiting_on, timeout)
        except TimeoutError:
            logger.warning("the coordinator does not say who is missing in %s", operation)
        if found is not None:
            return found
        await asyncio.sleep(deadline - _ANSWER_SECONDS - time.monotonic())
        return await self._see(group, sequence, operation, waiting_on)

    async def _see(
        self, group: str, sequence: int, operation: str, waiting_on: Sequence[int]
    ) -> Verdict:
        """Find out alone who is missing in a call."""
        asked = [*waiting_on]
        engine = self._engines.get(group)
        if engine is not None and len(engine.ranks) <= _MOST_ASKED:
            asked = [rank for rank in engine.ranks if rank != self.rank]
        self._answers.clear()
        for rank in asked:
            self._mesh.ping(rank, again=True)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                while not self._answers.keys() >= {*asked}:
                    self._answered.clear()
                    await self._answered.wait()
        except TimeoutError:
            pass  # that is an answer as well
        return local_verdict.of_call(
            group,
            sequence,
            operation,
            [self.members[rank] for rank in asked],
            waiting_on,
            space=self._space,
            answers=self._answers,
            linked=[rank for rank in asked if not self.shares_memory(rank)],
        )

    async def meet(self, group: str, sequence: int, timeout: float) -> Verdict | None:
        return await self._session.meet(group, sequence, timeout)

    def gave_up(self, group: str, ranks: Sequence[int], sequence: int, reason: str) -> None:
        given = wire.CancelCall(group=group, sequence=sequence, reason=reason)
        self._session.say(wire.SessionRequest(cancel_call=given))
        self._tell(ranks, Kind.GIVE_UP, Key(group_hash(group), sequence), reason.encode())

    def abort(self, group: str, reason: str) -> None:
        by = self.name(self.rank)
        ranks = self._engines[group].ranks if group in self._engines else [*self.members]
        self.aborted(group, by, reason)
        self._session.say(wire.SessionRequest(abort=wire.Abort(group=group, reason=reason)))
        told = wire.Aborted(group=group, by=by, reason=reason).SerializeToString()
        self._cries.append((ranks, Key(group_hash(group) if group else 0, 0), told))
        self._tell(ranks, Kind.ABORT, *self._cries[-1][1:])

    async def cry(self, group: str, reason: str) -> None:
        """Abort, and return once the coordinator and the peers have been told."""
        self.abort(group, reason)
        await self._session.flush()

    def condition_of(self, rank: int) -> AbsentRank | None:
        return self._conditions.get(rank)

    def shares_memory(self, rank: int) -> bool:
        return self._arena is not None and self._arena.has(rank)

    def watch_links(self, waiting_for: Callable[[], Iterable[int]]) -> Callable[[], None]:
        def linked() -> list[int]:
            gone = self._gone | self._left
            ranks = [rank for rank in waiting_for() if rank not in gone]
            return [rank for rank in ranks if not self.shares_memory(rank)]

        return self._pings.watch(linked)

    def _tell_silent(self, rank: int, seconds: float) -> None:
        silent = wire.LinkSilent(rank=rank, seconds=seconds)
        self._session.say(wire.SessionRequest(link_silent=silent))

    def _tell_answers(self, rank: int) -> None:
        answers = wire.LinkSilent(rank=rank, is_over=True)
        self._session.say(wire.SessionRequest(link_silent=answers))

    def _tell(self, ranks: Sequence[int], kind: Kind, key: Key, payload: bytes) -> None:
        """Tell peers over links: over those there are, unless nobody else would tell them."""
        others = [rank for rank in ranks if rank != self.rank and rank not in self._left]
        self._mesh.tell(others, kind, key, payload, dial=self._coordinator_gone.is_set())

    async def all_present(self, ranks: Sequence[int]) -> bool:
        return await self._session.all_present(ranks)

    # ------------------------------------------------------------ mesh Listener

    def refused(self, peer: int, key: Key, call: str) -> None:
        self._tell_group(peer, key.group, lambda engine: engine.refused(peer, key, call))

    def unlike(self, peer: int, key: Key) -> None:
        for engine in self._engines.values():
            if engine.hash == key.group and peer in engine.ranks:
                engine.unlike(peer, key)

    def link_broken(self, peer: int, reason: str) -> None:
        if peer in self._gone or peer in self._left or self._closed:
            return
        logger.debug("link with rank %d broke: %s", peer, reason)
        self._pings.forget(peer)
        self._opinions[peer] = asyncio.create_task(self._second_opinion(peer, reason))

    def whereabouts(self) -> bytes:
        said = wire.Heartbeat(progress=self.progress(), stack=self.stack())
        return said.SerializeToString()

    def ponged(self, peer: int, payload: bytes) -> None:
        self._answers[peer] = _parsed(wire.Heartbeat(), payload)
        self._ponged[peer] = time.monotonic()
        self._answered.set()

    def told(self, peer: int, kind: Kind, key: Key, payload: bytes) -> None:
        if kind is Kind.ABORT:
            told = _parsed(wire.Aborted(), payload)
            self.aborted(told.group, told.by, told.reason)
            return
        if kind is Kind.RELAY:
            event = _parsed(wire.SessionEvent(), payload)
            if event.WhichOneof("event") in OF_THE_WORLD:
                self._session.take(event, self)
            return
        given = CallCancellation(peer, self.name(peer), payload.decode(errors="replace"))
        self._tell_group(peer, key.group, lambda engine: engine.given_up(key.sequence, given))

    async def _second_opinion(self, peer: int, reason: str) -> None:
        """Let the coordinator say what became of a peer; decide alone where it has gone."""
        await self._session.report_broken_link(peer, reason, self.shares_memory(peer))
        # Cancelled by the coordinator's word; where that does not come it may be out of reach.
        if not await first(self._coordinator_gone.wait(), timeout=_WORD_SECONDS):
            found = await self._look_at(peer, reason)
            if found.absent[0].state == "dead":
                self.member_lost(peer, reason, found)
                return
            await self._coordinator_gone.wait()
        found = await self._look_at(peer, reason)
        if found.absent[0].state == "dead" or not self.shares_memory(peer):
            self.member_lost(peer, reason, found)

    async def _look_at(self, peer: int, reason: str) -> Verdict:
        """Look at the process of a peer to which the link broke; it may be about to end."""
        member, until = self.members[peer], time.monotonic() + _ENDING_SECONDS
        found = local_verdict.of_broken_link(member, reason, self._space)
        while found.absent[0].state == "unreachable" and member.space == self._space != "":
            if time.monotonic() > until:
                break
            await asyncio.sleep(_LOOK_SECONDS)  # nothing tells of the end of a process
            found = local_verdict.of_broken_link(member, reason, self._space)
        return found

    # ------------------------------------------------------------ SessionListener

    def progress(self) -> Sequence[wire.Progress]:
        # What a call has failed of is told by these: its data has not come in any case.
        silent = self._mesh.unanswered(SILENT_SECONDS, behind_data=True)
        return [
            _progress(
                engine.name, engine.position, [rank for rank in silent if rank in engine.ranks]
            )
            for engine in self._engines.values()
        ]

    def begun(self) -> Sequence[wire.CallStarts]:
        told = ((engine.name, engine.recording.begun()) for engine in self._engines.values())
        return [
            wire.CallStarts(
                group=name, sequences=[one[0] for one in calls], times=[one[1] for one in calls]
            )
            for name, calls in told
            if calls
        ]

    def report(self, operations: int, nbytes: int) -> bytes:
        return report_codec.encode(self.records(operations), self.progress(), self.stack(), nbytes)

    def _last_report(self, at: tuple[Sequence[wire.Progress], str], nbytes: int) -> bytes:
        """Return what is to be kept of this rank: where it was, and its latest calls."""
        of_each = max(_KEPT_OPERATIONS // max(len(self._engines), 1), 1)
        return report_codec.encode(self.records(of_each), *at, nbytes)

    def _tell_last_report(self) -> None:
        """Have the coordinator keep where this rank is now, before its calls end in a failure."""
        if self._failed_at is None and not self._closed:
            self._failed_at = at = self.progress(), self.stack()
            self._session.tell_last_report(at[0], partial(self._last_report, at))

    def records(self, last: int | None = None) -> list[OperationRecord]:
        """Return what this rank has recorded, `last` operations of each group; any thread."""
        engines = list(self._engines.values())
        return by_time(one for engine in engines for one in engine.recording.records(last))

    def member_lost(self, rank: int, reason: str, found: Verdict) -> None:
        if rank in self._gone:
            return
        self._tell_last_report()
        self._gone.add(rank)
        failure = self._announced(
            found, partial(call_errors.peer_failed, found=found, ranks=found.ranks)
        )
        logger.warning("%s is lost: %s; %s", self.name(rank), reason, found.text)
        self._known(rank)

        def tell(engine: GroupEngine) -> None:
            if rank in engine.ranks:
                engine.fail(failure)

        self._befell(tell)

    def member_left(self, left: wire.MemberLeft) -> None:
        rank = left.rank
        if rank in self._left:
            return
        found = local_verdict.of_left(self.members[rank], left.error)
        completed = {one.group: one.completed for one in left.progress}
        failure: Failure = partial(call_errors.peer_failed, found=found, ranks=found.ranks)
        if left.aborts and left.error:
            failure = partial(
                call_errors.aborted_by_error,
                by=self.name(rank),
                error=left.error,
                traceback=left.traceback,
                found=found,
            )
        if left.error or any(self._needs(rank, completed, one) for one in self._engines.values()):
            self._tell_last_report()
        failure = self._announced(found, failure)
        self._left.add(rank)
        self._known(rank)
        self._mesh.part(rank)

        def tell(engine: GroupEngine) -> None:
            if rank in engine.ranks:
                last = completed.get(engine.name, 0)
                engine.peer_left(rank, last, failure, is_fault=bool(left.error))

        self._befell(tell)

    def ruled(self, found: Verdict, pairs: Sequence[tuple[int, int]]) -> None:
        if found.text in self._ruled:  # told by a peer before
            return
        self._ruled.add(found.text)
        logger.warning("%s", found.text)
        self._tell_last_report()
        failure = self._announced(
            found, partial(call_errors.peer_failed, found=found, ranks=found.ranks)
        )
        for both in pairs:
            for rank in both:
                if self.rank in both:
                    self._known(rank)

        def tell(engine: GroupEngine) -> None:
            if any({*both} <= {*engine.ranks} for both in pairs):
                engine.fail(failure)

        self._befell(tell)

    def links_silent(self, found: Verdict, pairs: Sequence[tuple[int, int]], is_over: bool) -> None:
        event = "silent links over" if is_over else "silent links"
        logger.warning("%s", found.text, extra={"allhands": {"event": event, "pairs": [*pairs]}})

    def aborted(self, group: str, by: str, reason: str) -> None:
        if group in self._aborted:
            return
        logger.warning("%s was aborted by %s: %s", group or "the world", by, reason)
        if not group:
            self._tell_last_report()
        self._aborted.add(group)
        failure = partial(call_errors.aborted, by=by, reason=reason)

        def tell(engine: GroupEngine) -> None:
            if group in ("", engine.name):
                engine.fail(failure)

        self._befell(tell)

    def terminate(self) -> None:
        """End all calls, also those to come: this process is told to end."""
        by = self.name(self.rank)

        def failure(what: str) -> AllhandsError:
            return GroupAborted(f"{what} cannot end: SIGTERM on this rank", by=by, reason="SIGTERM")

        self._befell(lambda engine: engine.fail(failure))

    def vouch(self, rank: int) -> None:
        vouching = asyncio.create_task(self._vouch(rank))
        self._vouching.add(vouching)
        vouching.add_done_callback(self._vouching.discard)

    async def _vouch(self, rank: int) -> None:
        """Tell the coordinator if a rank answers a ping."""
        begun = time.monotonic()
        # A new link to a rank that answers nobody would only break.
        self._mesh.ping(rank, dial=self.shares_memory(rank))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_SECONDS):
                while self._ponged.get(rank, 0.0) < begun:
                    self._answered.clear()
                    await self._answered.wait()
                self._session.say(wire.SessionRequest(indirect_ack=wire.IndirectAck(rank=rank)))

    def condition(self, rank: int, found: AbsentRank | None, seconds: float) -> None:
        known = self._conditions.pop(rank, None)
        if found is not None:
            self._conditions[rank] = found
        if rank == self.rank:
            if found is not None and (known is None or known.state != found.state):
                logger.warning("as peers tell it: %s", found.text)
        elif found is None:
            logger.info("%s is heard again, after %.1f s", self.name(rank), seconds)
        for engine in self._engines.values():
            if rank in engine.ranks and found is not None:
                engine.learn()

    def relay(self, event: wire.SessionEvent) -> None:
        cut_off = [rank for rank, one in self._conditions.items() if one.state == "unreachable"]
        payload = event.SerializeToString()
        others = [rank for rank in cut_off if rank != self.rank and rank not in self._gone]
        self._mesh.tell(others, Kind.RELAY, Key(0, 0), payload, dial=False)

    def call_given_up(self, group: str, sequence: int, given: CallCancellation) -> None:
        if (engine := self._engines.get(group)) is not None:
            engine.given_up(sequence, given)

    def expelled(self, reason: str) -> None:
        self._expelled = reason
        epoch = self._session.epoch

        def failure(what: str) -> AllhandsError:
            error = MembershipChanged(
                f"{what} cannot run: this process is no longer a member of job "
                f"{self.config.job!r}: {reason}",
                old_epoch=epoch,
                new_epoch=epoch + 1,
            )
            error.is_final = True
            return error

        logger.error("expelled from job %s: %s", self.config.job, reason)
        self._befell(lambda engine: engine.fail(failure))

    def coordinator_gone(self, reason: str) -> None:
        self._coordinator_gone.set()
        for ranks, key, told in self._cries:  # perhaps it never heard of them
            self._tell(ranks, Kind.ABORT, key, told)
        host = next((one for one in self.members.values() if one.hosts_coordinator), None)
        for rank in [*self._opinions]:
            # Its link broke before: the host may have gone because of it.
            self._lose_if_dead(rank, "its link broke")
        if host is None or host.rank == self.rank:
            logger.error("the coordinator went away: %s", reason)
        elif host.rank not in self._left:
            self.member_lost(host.rank, reason, local_verdict.of_host(host))

    def newcomers(self, count: int) -> None:
        self.waiting = count

    # ------------------------------------------------------------ inside

    async def _gauge(self, group: GroupEngine) -> None:
        """Measure the links of a world on several hosts; on one host thresholds are known."""
        if len({self.members[rank].host for rank in group.ranks}) > 1:
            name = f"{group.name}/links"
            engine = await self.open_group(name, group.ranks, verify=False)
            try:
                self._wire = group.wire = await gauge(engine)
            finally:
                await self.close_group(name)
            logger.info("links of job %s: %s", self.config.job, self._wire)

    def _layout(self, ranks: Sequence[int]) -> Layout | None:
        """Return how a group lies on its hosts, if that matters: all its ranks see the same."""
        if self.config.deterministic:
            return None
        told = [Announcement.parsed(self.members[rank].memory) for rank in ranks]
        hosts = ["" if one is None else one.host for one in told]
        layout = Layout(islands(hosts), ranks.index(self.rank))
        return layout if layout.is_layered else None

    async def _idle(self) -> None:
        for engine in self._engines.values():
            await engine.idle()

    def _known(self, rank: int) -> None:
        """The coordinator has spoken about a rank: no more need for an own opinion."""
        self._pings.forget(rank)
        opinion = self._opinions.pop(rank, None)
        if opinion is not None and opinion is not asyncio.current_task():
            opinion.cancel()

    def _announced(self, found: Verdict, failure: Failure) -> Failure:
        """Return a failure of which the launcher is told, when the first call fails of it."""
        one = found.absent[0]
        cause = Cause(one.rank, one.host, one.pid, one.state, one.text)

        def announced(what: str) -> AllhandsError:
            if not self._has_told_cause:
                self._has_told_cause = True
                announce_cause(os.environ, cause)
            return failure(what)

        return announced

    def _lose_if_dead(self, rank: int, reason: str) -> None:
        """Count a member as lost whose process is seen to have ended."""
        found = local_verdict.of_broken_link(self.members[rank], reason, self._space)
        if found.absent[0].state == "dead":
            self.member_lost(rank, reason, found)

    def _befell(self, tell: Callable[[GroupEngine], None]) -> None:
        """Let engines know what befell the world: those that there are, and those to come."""
        self._events.append(tell)
        for engine in self._engines.values():
            tell(engine)

    def _tell_group(self, peer: int, group: int, tell: Callable[[GroupEngine], None]) -> None:
        """Let a group know what a peer said of its calls, once: as soon as it is open here."""
        engines = [engine for engine in self._engines.values() if engine.hash == group]
        for engine in engines:
            if peer in engine.ranks:
                tell(engine)
        if not engines and group not in map(group_hash, self._ended):
            self._early.append((group, peer, tell))

    def _needs(self, rank: int, completed: Mapping[str, int], engine: GroupEngine) -> bool:
        """Say whether a call is under way here that a rank has left before."""
        at = engine.position
        is_missing = at.sequence > completed.get(engine.name, 0)
        return rank in engine.ranks and bool(at.operation) and is_missing


def _progress(group: str, position: Position, unanswered: Sequence[int] = ()) -> wire.Progress:
    return wire.Progress(
        group=group,
        sequence=position.sequence,
        completed=position.completed,
        operation=position.operation,
        elapsed=time.monotonic() - position.since,
        unanswered_pings=unanswered,
    )


def _parsed(message: M, payload: bytes) -> M:
    """Read what a peer sent."""
    try:
        message.ParseFromString(payload)
    except DecodeError as error:
        raise FrameError(f"no {type(message).__name__}: {error}") from error
    return message


def _arena(config: WorldConfig) -> tuple[Arena | None, str]:
    """Make this process's shared memory, or say why there is none.

    Raises:
        AllhandsError: there is none, and the backend is to use nothing else.
    """
    if config.backend in ("grpc", "socket"):
        return None, ""
    native, absence = native_core.find()
    try:
        if native is not None:
            return Arena(native, config.limits), ""
    except OSError as error:
        absence = f"no shared memory, ranks of one host talk over links: {error}"
    if config.backend == "shm":
        raise AllhandsError(f"backend='shm' is not possible: {absence}")
    return None, absence


async def _join(
    config: WorldConfig,
    meeting: Meeting,
    request: wire.Join,
    listen: Callable[[Dial, float], Awaitable[None]],
    deadline: float,
) -> Session:
    """Join, and try again until the deadline where the coordinator may only be late."""
    attempts = Attempts(deadline)
    while True:
        try:
            remaining = max(deadline - time.monotonic(), RETRY_SECONDS)
            dialled = dial(meeting.endpoint)
            await listen(dialled, remaining)
            remaining = max(deadline - time.monotonic(), RETRY_SECONDS)
            return await Session.join(dialled, request, remaining)
        except CoordinatorUnavailable as error:
            endpoint = None if meeting.hosted else meeting.endpoint
            await asyncio.to_thread(attempts.failed, error, endpoint, meeting.is_guess)
        except Unauthenticated:
            # Perhaps the notice of a coordinator that was here before.
            if not meeting.is_guess or time.monotonic() + RETRY_SECONDS > deadline:
                raise
        await asyncio.sleep(RETRY_SECONDS)  # there is no event for "somebody listens"
        if meeting.is_guess:
            remaining = max(deadline - time.monotonic(), RETRY_SECONDS)
            meeting.endpoint = (await meet(replace(config, timeout=remaining))).endpoint


def _destroyed(what: str) -> AllhandsError:
    return AllhandsError(f"{what} cannot run: the group was destroyed")
