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

from allhands.collectives.algorithms.cost import LinkCost
from allhands.collectives.hierarchical_plan import HostLayout, group_by_host
from allhands.collectives.signature import hash_group
from allhands.config import WorldConfig
from allhands.coordinator import report_codec
from allhands.coordinator.attempts import RETRY_SECONDS, ConnectAttempts
from allhands.coordinator.endpoint import ChannelConfig, configure_channel
from allhands.coordinator.rendezvous import WorldRendezvous, find_or_host_coordinator
from allhands.coordinator.session import WORLD_EVENTS, Session, WorldMember, read_member
from allhands.engine.failures import call_errors
from allhands.engine.failures.call_errors import ErrorFactory
from allhands.engine.failures.tracker import wait_first
from allhands.engine.group_engine import GroupEngine, GroupProgress
from allhands.engine.links.pings import SILENT_SECONDS, PingMonitor
from allhands.errors import (
    AllhandsError,
    CoordinatorUnavailable,
    GroupAborted,
    MembershipChanged,
    PeerFailed,
    Unauthenticated,
)
from allhands.membership import advertised_address, local_verdict
from allhands.membership.link_probe import measure_links
from allhands.membership.reform import GroupChange, GroupChangeRequest
from allhands.recorder.dump import Dumper
from allhands.recorder.record import OperationRecord, sort_by_time
from allhands.runtime import native_core, stack_dump
from allhands.runtime.exit_notice import (
    LAUNCH_VARIABLE,
    FailureCause,
    send_cause_notice,
    send_end_notice,
)
from allhands.shm.areas import GroupAreas
from allhands.shm.arena import Arena, SegmentAddress
from allhands.transport.frame import FrameError, FrameKind, MessageKey
from allhands.transport.handshake import Identity
from allhands.transport.mesh import Mesh
from allhands.transport.ports import Ports
from allhands.verdicts import AbsentRank, CallCancellation, Verdict
from allhands_proto import forks, notice, process, stack_channel
from allhands_proto.v1 import coordinator_pb2 as wire

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)

WORLD = "world"
_PONG_SECONDS = 0.25
"""How long peers may take to answer a ping where the coordinator cannot be asked about them."""
_MAX_PINGED = 64
"""Ranks of a group that are all pinged then; in larger ones those that are waited for."""
_VERDICT_GRACE_SECONDS = 0.6
"""After a call's deadline, until the coordinator is taken to say nothing."""
_ERROR_DRAIN_SECONDS = 0.5
"""Seconds for the messages of a rank that leaves because of an error: the others wait for it."""
_PEER_CLOSE_SECONDS = 0.5
"""How long a rank that has left waits for the others to close their links to it."""
_EXIT_SECONDS = 0.3
"""How long a process that ends may still be there when its links are closed."""
_MAX_CLOSED_GROUPS = 256
"""Closed groups of which a rank that leaves says what it completed there, the latest ones."""
_MAX_EARLY = 256
"""What peers said of calls of groups that are not open here yet, the latest of it."""
_POLL_SECONDS = 0.01
_REPORTED_OPERATIONS = 256
"""Calls of all groups in a rank's last report: putting them into words takes about 10 ms."""
_RULING_SECONDS = 1.5
"""How long a coordinator that is there may take to say what became of a peer."""


class Worker:
    """Everything of one membership; lives on one loop, and is called there only.

    It is the registry of its engines, and the listener of its mesh and its session.
    """

    def __init__(
        self, config: WorldConfig, rendezvous: WorldRendezvous, ports: Ports, session: Session
    ) -> None:
        self.config = config
        self.rank = session.joined.rank
        self.members = {member.rank: member for member in session.members}
        self.rendezvous = rendezvous
        self._ports = ports
        self._session = session
        self._mesh = Mesh(self, session.joined.secret, session.joined.rank)
        self._pings = PingMonitor(self._mesh, self._send_link_silent, self._send_link_answers)
        self._engines: dict[str, GroupEngine] = {}
        self._closed_positions: dict[
            str, GroupProgress
        ] = {}  # where this rank was in groups it has closed
        self._lost: set[int] = set()
        self._left: set[int] = set()
        self._aborted: set[str] = set()  # groups; all of them as ""
        self._world_events: list[Callable[[GroupEngine], None]] = []
        """What befell the world, in the order in which it was heard of: each tells an engine."""
        self._early_messages: deque[tuple[int, int, Callable[[GroupEngine], None]]] = deque(
            maxlen=_MAX_EARLY
        )
        """What peers said of calls of groups not open here yet: of which, by its hash, and who."""
        self._has_told_cause = False
        self._own_aborts: list[tuple[Sequence[int], MessageKey, bytes]] = []  # own aborts
        self._pid_namespace = process.get_pid_namespace()
        self._coordinator_gone = asyncio.Event()
        self._pongs: dict[int, wire.Heartbeat] = {}  # of peers that were pinged
        self._pong_arrived = asyncio.Event()
        self._pong_times: dict[int, float] = {}  # when peers answered a ping last
        self._seen_rulings: set[str] = set()
        self._conditions: dict[int, AbsentRank] = {}  # of ranks that are silent though they live
        self._vouch_tasks: set[asyncio.Task[None]] = set()
        self._expelled_reason: str | None = None
        self._opinion_tasks: dict[int, asyncio.Task[None]] = {}
        self._is_closed = False
        self._first_failure_state: tuple[Sequence[wire.Progress], str] | None = None
        """Where this rank and its program were at the first failure since a group went on."""
        self.get_stack: Callable[[], str] = stack_dump.format_main_thread
        """Says where the program is; see `SessionListener`."""
        self.newcomer_count = 0
        """Workers that wait to be taken in by a grow."""
        self._arena: Arena | None = None
        self._link_cost: LinkCost | None = None
        self._dumper = Dumper(
            config.dump_on_failure, config.job, self.rank, len(self.members), self.get_records
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
        arena, absence = _make_arena(config)
        given = await advertised_address.resolve_configured(config)
        meeting = await find_or_host_coordinator(config)
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
                hosts_coordinator=meeting.embedded is not None,
                memory="" if arena is None else str(arena.segment_address),
                elastic=config.is_elastic,
                max_members=config.max_size,
                pid_namespace=process.get_pid_namespace(),
                start_ticks=notice.read_start_ticks(os.getpid()),
                exit_is_reported=LAUNCH_VARIABLE in os.environ,
                stack_channel=stack_channel.open_channel(),
            )

            async def listen(channel_config: ChannelConfig, timeout: float) -> None:
                """Listen once it is known where, and let the request say so."""
                if ports.port:
                    return
                where = given or await advertised_address.discover(
                    config, meeting.endpoint, channel_config, timeout
                )
                await ports.start(where.listen)
                request.port, request.data_port = ports.port, ports.data_port
                request.advertise = where.advertise

            session = await _join_session(config, meeting, request, listen, begun + config.timeout)
        except BaseException:
            await ports.aclose()
            if meeting.embedded is not None:
                await meeting.embedded.stop(0)
            raise
        joined = session.joined
        worker = cls(config, meeting, ports, session)
        worker._arena = arena
        beside = [one.rank for one in session.members if one.host == request.host]
        if absence and joined.rank == min(beside) and len(beside) > 1:
            logger.warning("%s", absence)  # once a host
        if arena is not None:
            arena.map(joined.rank, {one.rank: (one.pid, one.memory) for one in session.members})
        fabric = ports.make_fabric(
            worker._make_identity(), session.members, worker._mesh, worker.describe_rank
        )
        worker._mesh.attach(fabric)
        ranks = [one.rank for one in session.members]
        # Ranks of a group that has changed are numbered anew.
        name, named = (session.group, range(len(ranks))) if session.group else (WORLD, None)
        worker.world = await worker.open_group(name, ranks, caller_ranks=named)
        session.start(worker)
        try:
            await worker._measure_links(worker.world)
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
        caller_ranks: Sequence[int] | None = None,
        verify: bool | None = None,
    ) -> GroupEngine:
        """Make the engine of a group that this rank belongs to; `GroupEngine` has `named`.

        `verify` None: as the world has it.
        """
        ranks = tuple(ranks)
        layout = self._compute_layout(ranks)
        grounds = self._open_areas(name, ranks)
        if layout is not None:
            grounds = self._open_areas(
                f"{name}/island", [ranks[rank] for rank in layout.local_ranks]
            )
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
            areas=grounds,
            layout=layout,
            allocate=self._allocate_scratch,
            caller_ranks=caller_ranks,
            recorder_size=self.config.recorder_size,
            verify=self.config.verify if verify is None else verify,
            open_composite_areas=lambda: self._open_areas(f"{name}/steps", ranks),
        )
        engine.link_cost = self._link_cost
        engine.recorder.on_failure = self._dumper.dump_failure
        self._engines[name] = engine
        self._closed_positions.pop(name, None)
        for tell in self._world_events:
            tell(engine)
        early, self._early_messages = self._early_messages, deque(maxlen=_MAX_EARLY)
        for group, peer, tell in early:
            self._notify_group(peer, group, tell)
        await self._session.open_group(name, ranks)
        return engine

    def is_open(self, name: str) -> bool:
        """Say whether there is a group of this name here; any thread."""
        return name in self._engines

    def get_groups(self) -> dict[str, tuple[int, ...]]:
        """Return the job's ranks in each group that is open here; any thread."""
        return {name: tuple(engine.ranks) for name, engine in list(self._engines.items())}

    def allocate(self, nbytes: int) -> "memoryview | bytearray":
        """Return zeroed memory that the ranks of this host share, where there is any."""
        if self._arena is None:
            return bytearray(nbytes)
        return memoryview(self._arena.heap.allocate(nbytes))[:nbytes]

    def _allocate_scratch(self, nbytes: int) -> "memoryview | bytearray":
        """Return memory that the ranks of this host share, or any where that is used up."""
        try:
            return self.allocate(nbytes)
        except MemoryError:
            return bytearray(nbytes)

    def _open_areas(self, name: str, ranks: Sequence[int]) -> GroupAreas | None:
        """Return a share of memory under that name to ranks of this host; None: there is none."""
        return None if self._arena is None else self._arena.open(hash_group(name), ranks)

    async def get_failure(self, name: str) -> AllhandsError | None:
        """Return why calls on a group fail from now on; None: nothing is known."""
        engine = self._engines.get(name)
        return (
            _make_destroyed_error(f"a call of group {name!r}")
            if engine is None
            else engine.get_next_error()
        )

    async def close_group(self, name: str, failure: ErrorFactory | None = None) -> None:
        """Forget a group once its calls have ended; those to come say `why`, whatever befell it."""
        engine = self._engines.get(name)
        if engine is not None:
            await engine.wait_idle()
            self._closed_positions[name] = engine.progress
            while len(self._closed_positions) > _MAX_CLOSED_GROUPS:
                del self._closed_positions[next(iter(self._closed_positions))]
            engine.replace_failure(failure) if failure is not None else engine.shut_down(
                _make_destroyed_error
            )
            gone = self._lost | self._left
            engine.close(gone)
            del self._engines[name]
            if self._arena is not None:
                for rank in gone.intersection(engine.ranks):
                    if not any(rank in other.ranks for other in self._engines.values()):
                        self._arena.forget(rank)
            await self._session.close_group(name)

    # ------------------------------------------------------------ going on after failures

    async def decide_group_change(
        self, group: str, request: GroupChangeRequest, timeout: float
    ) -> GroupChange:
        """Decide with the other present ranks of a group; the errors are those of the session."""
        told = await self._session.request_group_change(
            wire.GroupChangeRequest(
                group=group,
                kind=request.kind,
                flag=request.flag,
                wanted=request.wanted,
                returned=request.returned,
                computed=request.computed,
            ),
            timeout,
        )
        members = tuple(map(read_member, told.members))
        newcomers = [one for one in members if one.rank not in self.members]
        if newcomers:
            self._add_members(newcomers)
        ranks = tuple(one.rank for one in members)
        return GroupChange(
            told.flag, told.epoch, told.group, ranks, told.committed, bool(newcomers)
        )

    async def apply_group_change(self, change: GroupChange, timeout: float) -> GroupEngine:
        """Make the engine of the group that goes on."""
        self._first_failure_state = None
        named = range(len(change.ranks))
        engine = await self.open_group(change.group, change.ranks, timeout, named)
        if self._has_told_cause:
            self._has_told_cause = False
            send_cause_notice(os.environ, None)
        if change.has_newcomers:
            # They have measured nothing yet, and all must choose alike.
            engine.link_cost = None
            with contextlib.suppress(PeerFailed):  # its first call will say so
                await self._measure_links(engine)
        return engine

    def _add_members(self, newcomers: Sequence[WorldMember]) -> None:
        """Take in ranks that came while the world ran."""
        self.members.update((one.rank, one) for one in newcomers)
        self._ports.add_peers(self._make_identity(), newcomers)
        if self._arena is not None:
            told = {one.rank: (one.pid, one.memory) for one in newcomers}
            self._arena.map(self.rank, told)

    def _make_identity(self) -> Identity:
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
        if self._is_closed:
            return
        self._is_closed = True
        for task in (*self._opinion_tasks.values(), *self._vouch_tasks):
            task.cancel()
        self._pings.close()
        if not error and self._expelled_reason is None:
            await self._wait_idle()
        at_end = self.get_progress(), ""

        def make_closed_error(what: str) -> AllhandsError:
            return AllhandsError(f"{what} cannot run: this rank has left the group")

        for engine in self._engines.values():
            engine.shut_down(make_closed_error)
        await self._wait_idle()
        try:
            # What this rank has completed the others can only end with all that it has sent.
            async with asyncio.timeout(_ERROR_DRAIN_SECONDS if error else self.config.timeout):
                await self._mesh.drain()
        except TimeoutError:
            logger.warning("left with messages that nobody has taken in")
        report, nbytes = b"", self._session.report_nbytes
        if nbytes and self._expelled_reason is None and not self._coordinator_gone.is_set():
            report = self._make_last_report(self._first_failure_state or at_end, nbytes)
        send_end_notice(os.environ, is_failing=bool(error))
        await self._session.leave(
            wire.Leave(
                # Of closed groups too: others may be in the last calls of those yet.
                progress=[
                    *self.get_progress(),
                    *(_make_progress(*one) for one in self._closed_positions.items()),
                ],
                error=error,
                traceback=traceback,
                aborts=aborts,
                report=report,
            )
        )
        for engine in self._engines.values():
            engine.close()
        await self._ports.wait_no_links(_PEER_CLOSE_SECONDS)
        await self._mesh.aclose()
        await self.rendezvous.aclose()

    # ------------------------------------------------------------ Registry

    def describe_rank(self, rank: int) -> str:
        return str(self.members.get(rank, f"rank {rank}"))  # one that is not introduced yet

    async def judge(
        self, group: str, sequence: int, operation: str, waiting_on: Sequence[int], timeout: float
    ) -> Verdict | CallCancellation | None:
        deadline = time.monotonic() + timeout
        found = None
        try:
            async with asyncio.timeout(max(timeout, 0) + _VERDICT_GRACE_SECONDS):
                found = await self._session.judge(group, sequence, operation, waiting_on, timeout)
        except TimeoutError:
            logger.warning("the coordinator does not say who is missing in %s", operation)
        if found is not None:
            return found
        await asyncio.sleep(deadline - _PONG_SECONDS - time.monotonic())
        return await self._judge_alone(group, sequence, operation, waiting_on)

    async def _judge_alone(
        self, group: str, sequence: int, operation: str, waiting_on: Sequence[int]
    ) -> Verdict:
        """Find out alone who is missing in a call."""
        asked = [*waiting_on]
        engine = self._engines.get(group)
        if engine is not None and len(engine.ranks) <= _MAX_PINGED:
            asked = [rank for rank in engine.ranks if rank != self.rank]
        self._pongs.clear()
        for rank in asked:
            self._mesh.ping(rank, again=True)
        try:
            async with asyncio.timeout(_PONG_SECONDS):
                while not self._pongs.keys() >= {*asked}:
                    self._pong_arrived.clear()
                    await self._pong_arrived.wait()
        except TimeoutError:
            pass  # that is an answer as well
        return local_verdict.judge_call(
            group,
            sequence,
            operation,
            [self.members[rank] for rank in asked],
            waiting_on,
            pid_namespace=self._pid_namespace,
            pongs=self._pongs,
            linked_ranks=[rank for rank in asked if not self.shares_memory(rank)],
        )

    async def wait_monitored_barrier(
        self, group: str, sequence: int, timeout: float
    ) -> Verdict | None:
        return await self._session.wait_monitored_barrier(group, sequence, timeout)

    def send_give_up(self, group: str, ranks: Sequence[int], sequence: int, reason: str) -> None:
        given = wire.CancelCall(group=group, sequence=sequence, reason=reason)
        self._session.send(wire.SessionRequest(cancel_call=given))
        self._send_to_peers(
            ranks, FrameKind.GIVE_UP, MessageKey(hash_group(group), sequence), reason.encode()
        )

    def abort(self, group: str, reason: str) -> None:
        by = self.describe_rank(self.rank)
        ranks = self._engines[group].ranks if group in self._engines else [*self.members]
        self.on_aborted(group, by, reason)
        self._session.send(wire.SessionRequest(abort=wire.Abort(group=group, reason=reason)))
        told = wire.Aborted(group=group, by=by, reason=reason).SerializeToString()
        self._own_aborts.append((ranks, MessageKey(hash_group(group) if group else 0, 0), told))
        self._send_to_peers(ranks, FrameKind.ABORT, *self._own_aborts[-1][1:])

    async def abort_and_flush(self, group: str, reason: str) -> None:
        """Abort, and return once the coordinator and the peers have been told."""
        self.abort(group, reason)
        await self._session.flush()

    def get_condition(self, rank: int) -> AbsentRank | None:
        return self._conditions.get(rank)

    def shares_memory(self, rank: int) -> bool:
        return self._arena is not None and self._arena.is_mapped(rank)

    def watch_links(self, waiting_for: Callable[[], Iterable[int]]) -> Callable[[], None]:
        def list_linked() -> list[int]:
            gone = self._lost | self._left
            ranks = [rank for rank in waiting_for() if rank not in gone]
            return [rank for rank in ranks if not self.shares_memory(rank)]

        return self._pings.watch(list_linked)

    def _send_link_silent(self, rank: int, seconds: float) -> None:
        silent = wire.LinkSilent(rank=rank, seconds=seconds)
        self._session.send(wire.SessionRequest(link_silent=silent))

    def _send_link_answers(self, rank: int) -> None:
        answers = wire.LinkSilent(rank=rank, is_over=True)
        self._session.send(wire.SessionRequest(link_silent=answers))

    def _send_to_peers(
        self, ranks: Sequence[int], kind: FrameKind, key: MessageKey, payload: bytes
    ) -> None:
        """Tell peers over links: over those there are, unless nobody else would tell them."""
        others = [rank for rank in ranks if rank != self.rank and rank not in self._left]
        self._mesh.send_control(others, kind, key, payload, dial=self._coordinator_gone.is_set())

    async def are_all_present(self, ranks: Sequence[int]) -> bool:
        return await self._session.all_present(ranks)

    # ------------------------------------------------------------ mesh Listener

    def on_nack(self, peer: int, key: MessageKey, call: str) -> None:
        self._notify_group(peer, key.group, lambda engine: engine.on_refused(peer, key, call))

    def on_mismatch(self, peer: int, key: MessageKey) -> None:
        for engine in self._engines.values():
            if engine.hash == key.group and peer in engine.ranks:
                engine.on_mismatch(peer, key)

    def on_link_broken(self, peer: int, reason: str) -> None:
        if peer in self._lost or peer in self._left or self._is_closed:
            return
        logger.debug("link with rank %d broke: %s", peer, reason)
        self._pings.forget(peer)
        self._opinion_tasks[peer] = asyncio.create_task(self._resolve_broken_link(peer, reason))

    def pong_payload(self) -> bytes:
        said = wire.Heartbeat(progress=self.get_progress(), stack=self.get_stack())
        return said.SerializeToString()

    def on_pong(self, peer: int, payload: bytes) -> None:
        self._pongs[peer] = _parse(wire.Heartbeat(), payload)
        self._pong_times[peer] = time.monotonic()
        self._pong_arrived.set()

    def on_control(self, peer: int, kind: FrameKind, key: MessageKey, payload: bytes) -> None:
        if kind is FrameKind.ABORT:
            told = _parse(wire.Aborted(), payload)
            self.on_aborted(told.group, told.by, told.reason)
            return
        if kind is FrameKind.RELAY:
            event = _parse(wire.SessionEvent(), payload)
            if event.WhichOneof("event") in WORLD_EVENTS:
                self._session.handle_event(event, self)
            return
        given = CallCancellation(peer, self.describe_rank(peer), payload.decode(errors="replace"))
        self._notify_group(peer, key.group, lambda engine: engine.on_given_up(key.sequence, given))

    async def _resolve_broken_link(self, peer: int, reason: str) -> None:
        """Let the coordinator say what became of a peer; decide alone where it has gone."""
        await self._session.report_broken_link(peer, reason, self.shares_memory(peer))
        # Cancelled by the coordinator's word; where that does not come it may be out of reach.
        if not await wait_first(self._coordinator_gone.wait(), timeout=_RULING_SECONDS):
            found = await self._inspect_process(peer, reason)
            if found.absent[0].state == "dead":
                self.on_member_lost(peer, reason, found)
                return
            await self._coordinator_gone.wait()
        found = await self._inspect_process(peer, reason)
        if found.absent[0].state == "dead" or not self.shares_memory(peer):
            self.on_member_lost(peer, reason, found)

    async def _inspect_process(self, peer: int, reason: str) -> Verdict:
        """Look at the process of a peer to which the link broke; it may be about to end."""
        member, until = self.members[peer], time.monotonic() + _EXIT_SECONDS
        found = local_verdict.judge_broken_link(member, reason, self._pid_namespace)
        while (
            found.absent[0].state == "unreachable"
            and member.pid_namespace == self._pid_namespace != ""
        ):
            if time.monotonic() > until:
                break
            await asyncio.sleep(_POLL_SECONDS)  # nothing tells of the end of a process
            found = local_verdict.judge_broken_link(member, reason, self._pid_namespace)
        return found

    # ------------------------------------------------------------ SessionListener

    def get_progress(self) -> Sequence[wire.Progress]:
        # What a call has failed of is told by these: its data has not come in any case.
        silent = self._mesh.find_silent(SILENT_SECONDS, behind_data=True)
        return [
            _make_progress(
                engine.name, engine.progress, [rank for rank in silent if rank in engine.ranks]
            )
            for engine in self._engines.values()
        ]

    def take_started_calls(self) -> Sequence[wire.CallStarts]:
        told = ((engine.name, engine.recorder.take_started()) for engine in self._engines.values())
        return [
            wire.CallStarts(
                group=name, sequences=[one[0] for one in calls], times=[one[1] for one in calls]
            )
            for name, calls in told
            if calls
        ]

    def make_report(self, operations: int, nbytes: int) -> bytes:
        return report_codec.encode(
            self.get_records(operations), self.get_progress(), self.get_stack(), nbytes
        )

    def _make_last_report(self, state: tuple[Sequence[wire.Progress], str], nbytes: int) -> bytes:
        """Return what is to be kept of this rank: where it was, and its latest calls."""
        of_each = max(_REPORTED_OPERATIONS // max(len(self._engines), 1), 1)
        return report_codec.encode(self.get_records(of_each), *state, nbytes)

    def _send_last_report(self) -> None:
        """Have the coordinator keep where this rank is now, before its calls end in a failure."""
        if self._first_failure_state is None and not self._is_closed:
            self._first_failure_state = at = self.get_progress(), self.get_stack()
            self._session.send_last_report(at[0], partial(self._make_last_report, at))

    def get_records(self, last: int | None = None) -> list[OperationRecord]:
        """Return what this rank has recorded, `last` operations of each group; any thread."""
        engines = list(self._engines.values())
        return sort_by_time(one for engine in engines for one in engine.recorder.list_records(last))

    def on_member_lost(self, rank: int, reason: str, found: Verdict) -> None:
        if rank in self._lost:
            return
        self._send_last_report()
        self._lost.add(rank)
        failure = self._announce_on_failure(
            found, partial(call_errors.build_peer_failed_error, verdict=found, ranks=found.ranks)
        )
        logger.warning("%s is lost: %s; %s", self.describe_rank(rank), reason, found.text)
        self._cancel_opinion(rank)

        def notify(engine: GroupEngine) -> None:
            if rank in engine.ranks:
                engine.fail(failure)

        self._notify_engines(notify)

    def on_member_left(self, left: wire.MemberLeft) -> None:
        rank = left.rank
        if rank in self._left:
            return
        found = local_verdict.judge_left(self.members[rank], left.error)
        completed = {one.group: one.completed for one in left.progress}
        failure: ErrorFactory = partial(
            call_errors.build_peer_failed_error, verdict=found, ranks=found.ranks
        )
        if left.aborts and left.error:
            failure = partial(
                call_errors.build_exception_aborted_error,
                by=self.describe_rank(rank),
                error=left.error,
                traceback=left.traceback,
                verdict=found,
            )
        if left.error or any(
            self._awaits_rank(rank, completed, one) for one in self._engines.values()
        ):
            self._send_last_report()
        failure = self._announce_on_failure(found, failure)
        self._left.add(rank)
        self._cancel_opinion(rank)
        self._mesh.close_link(rank)

        def notify(engine: GroupEngine) -> None:
            if rank in engine.ranks:
                last = completed.get(engine.name, 0)
                engine.on_peer_left(rank, last, failure, is_fault=bool(left.error))

        self._notify_engines(notify)

    def on_ruling(self, found: Verdict, pairs: Sequence[tuple[int, int]]) -> None:
        if found.text in self._seen_rulings:  # told by a peer before
            return
        self._seen_rulings.add(found.text)
        logger.warning("%s", found.text)
        self._send_last_report()
        failure = self._announce_on_failure(
            found, partial(call_errors.build_peer_failed_error, verdict=found, ranks=found.ranks)
        )
        for both in pairs:
            for rank in both:
                if self.rank in both:
                    self._cancel_opinion(rank)

        def notify(engine: GroupEngine) -> None:
            if any({*both} <= {*engine.ranks} for both in pairs):
                engine.fail(failure)

        self._notify_engines(notify)

    def on_links_silent(
        self, found: Verdict, pairs: Sequence[tuple[int, int]], is_over: bool
    ) -> None:
        event = "silent links over" if is_over else "silent links"
        logger.warning("%s", found.text, extra={"allhands": {"event": event, "pairs": [*pairs]}})

    def on_aborted(self, group: str, by: str, reason: str) -> None:
        if group in self._aborted:
            return
        logger.warning("%s was aborted by %s: %s", group or "the world", by, reason)
        if not group:
            self._send_last_report()
        self._aborted.add(group)
        failure = partial(call_errors.build_aborted_error, by=by, reason=reason)

        def notify(engine: GroupEngine) -> None:
            if group in ("", engine.name):
                engine.fail(failure)

        self._notify_engines(notify)

    def terminate(self) -> None:
        """End all calls, also those to come: this process is told to end."""
        by = self.describe_rank(self.rank)

        def make_error(what: str) -> AllhandsError:
            return GroupAborted(f"{what} cannot end: SIGTERM on this rank", by=by, reason="SIGTERM")

        self._notify_engines(lambda engine: engine.fail(make_error))

    def vouch(self, rank: int) -> None:
        vouching = asyncio.create_task(self._vouch(rank))
        self._vouch_tasks.add(vouching)
        vouching.add_done_callback(self._vouch_tasks.discard)

    async def _vouch(self, rank: int) -> None:
        """Tell the coordinator if a rank answers a ping."""
        begun = time.monotonic()
        # A new link to a rank that answers nobody would only break.
        self._mesh.ping(rank, dial=self.shares_memory(rank))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PONG_SECONDS):
                while self._pong_times.get(rank, 0.0) < begun:
                    self._pong_arrived.clear()
                    await self._pong_arrived.wait()
                self._session.send(wire.SessionRequest(indirect_ack=wire.IndirectAck(rank=rank)))

    def on_condition(self, rank: int, found: AbsentRank | None, seconds: float) -> None:
        known = self._conditions.pop(rank, None)
        if found is not None:
            self._conditions[rank] = found
        if rank == self.rank:
            if found is not None and (known is None or known.state != found.state):
                logger.warning("as peers tell it: %s", found.text)
        elif found is None:
            logger.info("%s is heard again, after %.1f s", self.describe_rank(rank), seconds)
        for engine in self._engines.values():
            if rank in engine.ranks and found is not None:
                engine.on_peer_silent()

    def relay_event(self, event: wire.SessionEvent) -> None:
        cut_off = [rank for rank, one in self._conditions.items() if one.state == "unreachable"]
        payload = event.SerializeToString()
        others = [rank for rank in cut_off if rank != self.rank and rank not in self._lost]
        self._mesh.send_control(others, FrameKind.RELAY, MessageKey(0, 0), payload, dial=False)

    def on_call_given_up(self, group: str, sequence: int, given: CallCancellation) -> None:
        if (engine := self._engines.get(group)) is not None:
            engine.on_given_up(sequence, given)

    def on_expelled(self, reason: str) -> None:
        self._expelled_reason = reason
        epoch = self._session.epoch

        def make_error(what: str) -> AllhandsError:
            error = MembershipChanged(
                f"{what} cannot run: this process is no longer a member of job "
                f"{self.config.job!r}: {reason}",
                old_epoch=epoch,
                new_epoch=epoch + 1,
            )
            error.is_final = True
            return error

        logger.error("expelled from job %s: %s", self.config.job, reason)
        self._notify_engines(lambda engine: engine.fail(make_error))

    def on_coordinator_gone(self, reason: str) -> None:
        self._coordinator_gone.set()
        for ranks, key, told in self._own_aborts:  # perhaps it never heard of them
            self._send_to_peers(ranks, FrameKind.ABORT, key, told)
        host = next((one for one in self.members.values() if one.hosts_coordinator), None)
        for rank in [*self._opinion_tasks]:
            # Its link broke before: the host may have gone because of it.
            self._lose_if_dead(rank, "its link broke")
        if host is None or host.rank == self.rank:
            logger.error("the coordinator went away: %s", reason)
        elif host.rank not in self._left:
            self.on_member_lost(host.rank, reason, local_verdict.judge_lost_host(host))

    def on_newcomers(self, count: int) -> None:
        self.newcomer_count = count

    # ------------------------------------------------------------ inside

    async def _measure_links(self, group: GroupEngine) -> None:
        """Measure the links of a world on several hosts; on one host thresholds are known."""
        if len({self.members[rank].host for rank in group.ranks}) > 1:
            name = f"{group.name}/links"
            engine = await self.open_group(name, group.ranks, verify=False)
            try:
                self._link_cost = group.link_cost = await measure_links(engine)
            finally:
                await self.close_group(name)
            logger.info("links of job %s: %s", self.config.job, self._link_cost)

    def _compute_layout(self, ranks: Sequence[int]) -> HostLayout | None:
        """Return how a group lies on its hosts, if that matters: all its ranks see the same."""
        if self.config.deterministic:
            return None
        told = [SegmentAddress.parse(self.members[rank].memory) for rank in ranks]
        hosts = ["" if one is None else one.host for one in told]
        layout = HostLayout(group_by_host(hosts), ranks.index(self.rank))
        return layout if layout.is_hierarchical else None

    async def _wait_idle(self) -> None:
        for engine in self._engines.values():
            await engine.wait_idle()

    def _cancel_opinion(self, rank: int) -> None:
        """The coordinator has spoken about a rank: no more need for an own opinion."""
        self._pings.forget(rank)
        opinion = self._opinion_tasks.pop(rank, None)
        if opinion is not None and opinion is not asyncio.current_task():
            opinion.cancel()

    def _announce_on_failure(self, found: Verdict, failure: ErrorFactory) -> ErrorFactory:
        """Return a failure of which the launcher is told, when the first call fails of it."""
        one = found.absent[0]
        cause = FailureCause(one.rank, one.host, one.pid, one.state, one.text)

        def announce_and_make(what: str) -> AllhandsError:
            if not self._has_told_cause:
                self._has_told_cause = True
                send_cause_notice(os.environ, cause)
            return failure(what)

        return announce_and_make

    def _lose_if_dead(self, rank: int, reason: str) -> None:
        """Count a member as lost whose process is seen to have ended."""
        found = local_verdict.judge_broken_link(self.members[rank], reason, self._pid_namespace)
        if found.absent[0].state == "dead":
            self.on_member_lost(rank, reason, found)

    def _notify_engines(self, notify: Callable[[GroupEngine], None]) -> None:
        """Let engines know what befell the world: those that there are, and those to come."""
        self._world_events.append(notify)
        for engine in self._engines.values():
            notify(engine)

    def _notify_group(self, peer: int, group: int, notify: Callable[[GroupEngine], None]) -> None:
        """Let a group know what a peer said of its calls, once: as soon as it is open here."""
        engines = [engine for engine in self._engines.values() if engine.hash == group]
        for engine in engines:
            if peer in engine.ranks:
                notify(engine)
        if not engines and group not in map(hash_group, self._closed_positions):
            self._early_messages.append((group, peer, notify))

    def _awaits_rank(self, rank: int, completed: Mapping[str, int], engine: GroupEngine) -> bool:
        """Say whether a call is under way here that a rank has left before."""
        at = engine.progress
        is_missing = at.sequence > completed.get(engine.name, 0)
        return rank in engine.ranks and bool(at.operation) and is_missing


def _make_progress(
    group: str, position: GroupProgress, unanswered: Sequence[int] = ()
) -> wire.Progress:
    return wire.Progress(
        group=group,
        sequence=position.sequence,
        completed=position.last_completed,
        operation=position.operation,
        elapsed=time.monotonic() - position.since,
        unanswered_pings=unanswered,
    )


def _parse(message: M, payload: bytes) -> M:
    """Read what a peer sent."""
    try:
        message.ParseFromString(payload)
    except DecodeError as error:
        raise FrameError(f"no {type(message).__name__}: {error}") from error
    return message


def _make_arena(config: WorldConfig) -> tuple[Arena | None, str]:
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


async def _join_session(
    config: WorldConfig,
    rendezvous: WorldRendezvous,
    request: wire.Join,
    listen: Callable[[ChannelConfig, float], Awaitable[None]],
    deadline: float,
) -> Session:
    """Join, and try again until the deadline where the coordinator may only be late."""
    attempts = ConnectAttempts(deadline)
    while True:
        try:
            remaining = max(deadline - time.monotonic(), RETRY_SECONDS)
            dialled = configure_channel(rendezvous.endpoint)
            await listen(dialled, remaining)
            remaining = max(deadline - time.monotonic(), RETRY_SECONDS)
            return await Session.join(dialled, request, remaining)
        except CoordinatorUnavailable as error:
            endpoint = None if rendezvous.embedded else rendezvous.endpoint
            await asyncio.to_thread(attempts.record_failure, error, endpoint, rendezvous.is_guess)
        except Unauthenticated:
            # Perhaps the notice of a coordinator that was here before.
            if not rendezvous.is_guess or time.monotonic() + RETRY_SECONDS > deadline:
                raise
        await asyncio.sleep(RETRY_SECONDS)  # there is no event for "somebody listens"
        if rendezvous.is_guess:
            remaining = max(deadline - time.monotonic(), RETRY_SECONDS)
            rendezvous.endpoint = (
                await find_or_host_coordinator(replace(config, timeout=remaining))
            ).endpoint


def _make_destroyed_error(what: str) -> AllhandsError:
    return AllhandsError(f"{what} cannot run: the group was destroyed")
