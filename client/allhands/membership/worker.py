"""One process in one world: join, leave; its bases handle events and groups."""

import asyncio
import logging
import os
import time

from allhands.config import BACKENDS, WorldConfig
from allhands.coordinator.endpoint import ChannelConfig
from allhands.coordinator.member_session import MemberSession
from allhands.coordinator.rendezvous import WorldRendezvous, find_or_host_coordinator
from allhands.engine.links.pings import PingMonitor
from allhands.errors import (
    AllhandsError,
    GroupAborted,
)
from allhands.membership import advertised_address
from allhands.membership.joining import join_session, make_arena, make_join_request
from allhands.membership.worker_groups import WorkerGroups
from allhands.membership.worker_state import make_progress
from allhands.runtime.exit_notice import (
    send_end_notice,
)
from allhands.shm.arena import Arena
from allhands.transport.mesh import Mesh
from allhands.transport.ports import Ports
from allhands_proto import forks
from allhands_proto.v1 import coordinator_pb2 as wire

logger = logging.getLogger(__name__)

WORLD = "world"
_ERROR_DRAIN_SECONDS = 0.5
"""Seconds for the messages of a rank that leaves because of an error: the others wait for it."""
_PEER_CLOSE_SECONDS = 0.5
"""How long a rank that has left waits for the others to close their links to it."""
_THREAD_SECONDS = 5.0
"""How long a rank that has left waits for its threads, which have nothing to wait for."""


class Worker(WorkerGroups):
    """One membership in one world: ports, session, links and groups of a process.

    Lives on one event loop and is called only there, except methods that say any thread.
    """

    def __init__(
        self, config: WorldConfig, rendezvous: WorldRendezvous, ports: Ports, session: MemberSession
    ) -> None:
        super().__init__(config, rendezvous, ports, session)
        self._mesh = Mesh(self, session.joined.secret, session.joined.rank)
        self._pings = PingMonitor(self._mesh, self._send_link_silent, self._send_link_answers)
        forks.hold(self)

    @classmethod
    async def start(cls, config: WorldConfig) -> "Worker":
        """Meet, listen, join; return when the world is complete.

        Raises:
            AllhandsError: the world did not come about; what each error says.
        """
        begun = time.monotonic()
        arena, absence = make_arena(config)
        configured = await advertised_address.resolve_configured(config)
        rendezvous = await find_or_host_coordinator(config)
        ports = Ports(BACKENDS[config.backend].links, config.ports)
        try:
            request = make_join_request(config, rendezvous, arena)

            async def listen(channel_config: ChannelConfig, timeout: float) -> None:
                """Start listening, and put the ports into the request."""
                if ports.port:
                    return
                where = configured or await advertised_address.discover(
                    config, rendezvous.endpoint, channel_config, timeout
                )
                await ports.start(where.listen, encrypts=channel_config.tls is not None)
                request.port, request.data_port = ports.port, ports.data_port
                request.advertise = where.advertise

            session = await join_session(
                config, rendezvous, request, listen, begun + config.timeout
            )
        except BaseException:
            await ports.aclose()
            if rendezvous.embedded is not None:
                await rendezvous.embedded.stop(0)
            raise
        worker = cls(config, rendezvous, ports, session)
        local_ranks = [member.rank for member in session.members if member.host == request.host]
        if absence and worker.rank == min(local_ranks) and len(local_ranks) > 1:
            logger.warning("%s", absence)  # once a host
        await worker._open_world(arena)
        logger.info(
            "joined job %s as rank %d of %d, epoch %d",
            config.job,
            worker.rank,
            len(session.members),
            session.epoch,
        )
        return worker

    async def _open_world(self, arena: Arena | None) -> None:
        """Connect memory and links with the members of the session, and open their group."""
        session = self._session
        self._arena = arena
        if arena is not None:
            arena.map(self.rank, {one.rank: (one.pid, one.memory) for one in session.members})
        self._mesh.attach(
            self._ports.make_fabric(
                self._make_identity(), session.members, self._mesh, self.describe_rank
            )
        )
        ranks = [member.rank for member in session.members]
        # Ranks of a group that has changed are numbered anew.
        name, caller_ranks = (session.group, range(len(ranks))) if session.group else (WORLD, None)
        self.world = await self.open_group(name, ranks, caller_ranks=caller_ranks)
        session.start(self)
        try:
            await self._measure_links(self.world)
        except BaseException as error:
            await self.leave(f"{type(error).__name__}: {error}")
            raise

    def forked(self) -> None:
        """Refuse all calls in a forked child, which is no member."""
        for engine in self._engines.values():
            engine.order.forked()

    @property
    def epoch(self) -> int:
        """The membership's version, as far as this worker has heard."""
        return self._session.epoch

    async def leave(self, error: str = "", traceback: str = "", aborts: bool = False) -> None:
        """End the membership; unless in error, drain sent messages first. Idempotent.

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
                    *(make_progress(name, *at) for name, at in self._closed_positions.items()),
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
        if names := self._threads.join(_THREAD_SECONDS):
            logger.warning("left while threads do not end: %s", ", ".join(names))

    def terminate(self) -> None:
        """End all present and later calls: this process was signalled to end."""
        by = self.describe_rank(self.rank)

        def make_error(what: str) -> AllhandsError:
            return GroupAborted(f"{what} cannot end: SIGTERM on this rank", by=by, reason="SIGTERM")

        self._notify_engines(lambda engine: engine.fail(make_error))
