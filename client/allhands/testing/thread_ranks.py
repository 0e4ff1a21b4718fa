"""Threads of one process as ranks: shared loop and coordinator.

The deciding parts are those of production: a worker for each rank, and a coordinator with its
machine. They run on one loop, on a dedicated thread, and nothing leaves the process.
"""

import asyncio
import atexit
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from allhands.api.world import World
from allhands.config import WorldConfig
from allhands.coordinator.embed import make_inproc_coordinator
from allhands.coordinator.endpoint import Address, Endpoint, configure_channel
from allhands.coordinator.rendezvous import WorldRendezvous
from allhands.coordinator.session import Session
from allhands.errors import GroupAborted
from allhands.membership.worker import WORLD, Worker
from allhands.runtime import stack_dump
from allhands.runtime.loop_thread import LoopThread
from allhands.runtime.sections import SectionReader, process_log
from allhands.testing.faults import Plan
from allhands.testing.faulty_channel import FaultyChannels
from allhands.testing.faulty_session import FaultySession
from allhands.transport.inproc import InprocFabric, InprocNetwork
from allhands.transport.ports import NoPorts
from allhands_proto.v1 import coordinator_pb2 as pb

if TYPE_CHECKING:
    from allhands.coordinator.embed import RunningCoordinator

_JOB = "threads"
_NOWHERE = Endpoint(Address("127.0.0.1", 1, _JOB), None)
_WINDOW = 60.0
"""Seconds of silence: ranks of one loop are silent together, and none is lost because of that."""
_END_SECONDS = 10.0


class SharedLoop(LoopThread):
    """A loop shared by the worlds of several threads."""

    def run_on_caller_thread(self, act: Callable[[], bool]) -> bool:
        return False  # what a peer sends comes by calls on the loop, which a borrower holds up

    def stop(self) -> None:
        """Do nothing: the loop outlives each rank."""

    def end(self) -> None:
        """End the loop and the thread. Idempotent."""
        super().stop()


class _WorldNetwork(InprocNetwork):
    """Network of the ranks of one world, once complete."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = asyncio.Event()


class ThreadRanks:
    """The coordinator of thread ranks, and the worlds they join; safe from any thread."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._loop = SharedLoop("allhands threads")
        self._call_lock = threading.Lock()
        self._is_over = False
        self._listen_lock = threading.Lock()
        self._networks: defaultdict[str, _WorldNetwork] = defaultdict(_WorldNetwork)
        self._workers: list[Worker] = []
        self._sessions: list[FaultySession] = []
        self._joining: set[asyncio.Task[Session]] = set()
        self._abort_reason = ""
        self._server: RunningCoordinator | None = None
        self._loop.run(self._begin())

    def make_handle(self, rank: int) -> "ThreadRankHandle":
        """Return the handle of one thread."""
        return ThreadRankHandle(self, rank)

    def release_joining(self, reason: str) -> None:
        """Release threads blocked on ranks that will not join."""
        self._call(self._release_joining, reason)

    def abort(self, reason: str) -> None:
        """Release every rank from the current call."""
        self._call(self._abort, reason)

    def close(self) -> None:
        """Stop the workers and the coordinator; in a forked child, leave the parent's running."""
        if self._loop.is_inherited:
            return
        with self._call_lock:
            self._is_over = True
        try:
            self._loop.run(self._aclose())
        finally:
            self._loop.end()

    def join(self, rank: int, config: WorldConfig) -> World:
        worker = self._loop.run(self._join(rank, config))
        worker.get_stack = partial(stack_dump.format_thread, threading.current_thread())
        worker.sections = SectionReader(process_log, threading.get_ident())
        return _ThreadWorld(self._loop, worker, self.open_endpoint)

    def open_endpoint(self) -> Endpoint:
        """Return the coordinator's endpoint; the first call opens the port."""
        with self._listen_lock:
            return self._loop.run(self._listen())

    def _call(self, act: Callable[[str], None], reason: str) -> None:
        if self._loop.is_inherited:
            return  # the ranks are threads of the process that this one was forked from
        with self._call_lock:
            if not self._is_over:  # else by a thread that was left behind
                self._loop.call(act, reason)

    async def _begin(self) -> None:
        self._coordinator = make_inproc_coordinator(time.monotonic)
        self._channels = FaultyChannels(Plan(0))

    async def _join(self, rank: int, config: WorldConfig) -> Worker:
        """Join one rank, as `Worker.start` does for a rank with ports."""
        if self._abort_reason:
            raise self._make_abort_error()
        session = FaultySession(self._channels, rank, self._coordinator.service)
        self._sessions.append(session)
        request = pb.Join(
            job=config.job,
            rank=rank,
            world_size=self.size,
            host=socket.gethostname(),
            pid=os.getpid(),
            port=_NOWHERE.address.port,
            heartbeat_window=config.heartbeat_window or _WINDOW,
            label=config.label,
            elastic=config.on_failure != "raise" or config.max_size > 0,
            max_members=config.max_size,
        )
        joining = asyncio.create_task(
            Session.join(configure_channel(_NOWHERE), request, config.timeout, session)  # type: ignore[arg-type]
        )
        self._joining.add(joining)
        try:
            joined = await joining
        except asyncio.CancelledError:
            if self._abort_reason:
                raise self._make_abort_error() from None
            raise
        finally:
            self._joining.discard(joining)
        worker = Worker(config, WorldRendezvous(_NOWHERE), NoPorts(), joined)
        hall = self._networks[config.job]
        worker._mesh.attach(InprocFabric(hall, rank, worker._mesh))
        worker.world = await worker.open_group(WORLD, range(self.size))
        joined.start(worker)
        self._workers.append(worker)
        # Nobody can be reached who is not there yet.
        if len(hall.fabrics) == self.size:
            hall.is_full.set()
        await hall.is_full.wait()  # all of them are on their way here, on this loop
        return worker

    def _make_abort_error(self) -> GroupAborted:
        text = f"init_process_group cannot end: {self._abort_reason}"
        return GroupAborted(text, by="a rank of this process", reason=self._abort_reason)

    def _release_joining(self, reason: str) -> None:
        self._abort_reason = self._abort_reason or reason
        for joining in self._joining:
            joining.cancel()

    def _abort(self, reason: str) -> None:
        self._release_joining(reason)
        for worker in self._workers:
            worker.on_aborted("", "run_threads", reason)

    async def _listen(self) -> Endpoint:
        if self._server is None:
            self._server = await self._coordinator.listen()
        return Endpoint(Address(self._server.host, self._server.port), self._server.token)

    async def _aclose(self) -> None:
        leaving = (worker.leave("all threads have ended") for worker in self._workers)
        await asyncio.wait_for(asyncio.gather(*leaving), _END_SECONDS)
        await asyncio.gather(*(session.sever() for session in self._sessions))
        self._channels.close()
        if self._server is not None:
            await self._server.stop()
        self._coordinator.close()


class ThreadRankHandle:
    """The membership of one thread; used by that thread alone."""

    def __init__(self, ranks: ThreadRanks, rank: int) -> None:
        self._ranks = ranks
        self._rank = rank
        self._attempts = 0

    def resolve_rank(self, rank: int, world_size: int) -> tuple[str, int, int]:
        if rank not in (-1, self._rank):
            raise ValueError(f"this thread is rank {self._rank}, not {rank}")
        if world_size not in (-1, self._ranks.size):
            raise ValueError(f"{self._ranks.size} threads are ranks, not {world_size}")
        return _NOWHERE.address.url, self._rank, self._ranks.size

    def join(self, config: WorldConfig) -> World:
        # The others may still be in the world that this rank has left.
        if self._attempts:
            config = replace(config, job=f"{config.job}.{self._attempts}")
        self._attempts += 1
        return self._ranks.join(self._rank, config)


class _ThreadWorld(World):
    """The world of one thread, of which the coordinator has no port until somebody asks."""

    def __init__(
        self, thread: LoopThread, worker: Worker, endpoint: Callable[[], Endpoint]
    ) -> None:
        super().__init__(thread, worker)
        atexit.unregister(self._at_exit)  # whoever holds the ranks ends them
        self._endpoint = endpoint

    def install_termination_handler(self) -> None:
        pass

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint()
