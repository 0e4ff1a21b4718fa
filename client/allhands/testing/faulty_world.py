"""A world of ranks within one loop, at a real coordinator, under a plan of faults.

What decides is what decides in production: workers, sessions, engines, and the coordinator with its
machine. What carries is not: links and sessions go over wires that obey the plan.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from allhands.config import Daemon, WorldConfig
from allhands.coordinator.embed import make_inproc_coordinator
from allhands.coordinator.endpoint import Address, Endpoint, configure_channel
from allhands.coordinator.rendezvous import WorldRendezvous
from allhands.coordinator.session import Session
from allhands.errors import AllhandsError
from allhands.group.group import Group
from allhands.membership.worker import WORLD, Worker
from allhands.testing.faults import COORDINATOR, Plan
from allhands.testing.faulty_channel import FaultyChannels
from allhands.testing.faulty_link import FaultyFabric, FaultyNetwork
from allhands.testing.faulty_session import FaultySession
from allhands.transport.ports import NoPorts
from allhands_proto.v1 import coordinator_pb2 as pb

_JOB = "faulty"
_ADDRESS = Address("127.0.0.1", 1, _JOB)


@asynccontextmanager
async def faulty_world(
    size: int,
    plan: Plan,
    *,
    timeout: float = 10.0,
    heartbeat_window: float = 2.0,
    deterministic: bool = False,
    verify: bool = False,
) -> AsyncIterator["FaultyWorld"]:
    """Give a world of `size` ranks, of which the plan's time begins when it is complete.

    In virtual time (`virtual_time.run`) what happens is the same every time. `timeout` is the
    default of every call. Afterwards every call has ended, those still under way by an
    `AllhandsError`, and no task of the world is left.
    """
    loop = asyncio.get_running_loop()
    config = WorldConfig(
        Daemon(_ADDRESS.url),
        _JOB,
        rank=0,
        world_size=size,
        timeout=timeout,
        heartbeat_window=heartbeat_window,
        backend="socket",
        deterministic=deterministic,
        verify=verify,
    )
    coordinator = make_inproc_coordinator(loop.time)
    world = FaultyWorld(plan, config)
    try:
        await world.form(size, coordinator.service)
        world.start(coordinator.close)
        yield world
    finally:
        await world.aclose()
        coordinator.close()


class FaultyRank:
    """A simulated process: a worker, with the resources that end with the process."""

    def __init__(self, worker: Worker, session: FaultySession, group: Group) -> None:
        self.worker = worker
        self.session = session
        self.group = group
        """Of all ranks."""
        self.is_dead = False

    async def kill(self) -> None:
        """End abruptly, with all calls under way. Idempotent."""
        if self.is_dead:
            return
        self.is_dead = True

        def make_error(what: str) -> AllhandsError:
            return AllhandsError(f"{what} cannot end: this rank was killed")

        await self.session.sever()
        worker = self.worker
        for engine in worker._engines.values():
            engine.fail(make_error)
        await worker._mesh.aclose()
        await worker.leave("it was killed")


class FaultyWorld:
    """The ranks and the channels between them."""

    def __init__(self, plan: Plan, config: WorldConfig) -> None:
        self.plan = plan
        self.ranks: list[FaultyRank] = []
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._channels = FaultyChannels(plan)
        self._kill_tasks: list[asyncio.Task[None]] = []
        self._end_coordinator: Callable[[], None] = lambda: None

    @property
    def groups(self) -> list[Group]:
        """World group of each rank."""
        return [rank.group for rank in self.ranks]

    def now(self) -> float:
        """Return the seconds since the plan began."""
        return self._channels.clock.now()

    async def open_group(self, ranks: Sequence[int], name: str = f"{WORLD}/1") -> list[Group]:
        """Make a group of some ranks; return the group's object of each."""
        return [
            Group(
                await self.ranks[rank].worker.open_group(name, ranks),
                _StallingExecutor(self, rank),
                self._config.timeout,
            )
            for rank in ranks
        ]

    async def settle(self, seconds: float) -> None:
        """Let time pass."""
        await asyncio.sleep(seconds)

    async def form(self, size: int, servicer: object) -> None:
        """Let all ranks join, while nothing goes wrong yet."""
        board = FaultyNetwork(self._channels)
        self.ranks = list(
            await asyncio.gather(*(self._join(rank, board, servicer) for rank in range(size)))
        )

    def start(self, end_coordinator: Callable[[], None]) -> None:
        """Begin to carry out the plan."""
        self._channels.begin()
        self._end_coordinator = end_coordinator
        self._kill_tasks = [
            asyncio.create_task(self._kill(kill.rank, kill.at), name=f"kill {kill.rank}")
            for kill in self.plan.kills
        ]

    async def kill(self, rank: int) -> None:
        """End a rank, or the coordinator, without a word."""
        self.plan.note(self.now(), "kill", (rank,))
        if rank == COORDINATOR:
            self._end_coordinator()
            await asyncio.gather(*(one.session.sever() for one in self.ranks))
        else:
            await self.ranks[rank].kill()

    async def aclose(self) -> None:
        """Stop all ranks, with all faults healed. Idempotent."""
        for killing in self._kill_tasks:
            killing.cancel()
        await asyncio.gather(*self._kill_tasks, return_exceptions=True)
        self._channels.heal()
        alive = [one.worker for one in self.ranks if not one.is_dead]
        await asyncio.gather(*(worker.leave("the world has ended") for worker in alive))
        await asyncio.gather(*(one.session.sever() for one in self.ranks))
        self._channels.close()

    async def _join(self, rank: int, network: FaultyNetwork, servicer: object) -> FaultyRank:
        """Join one rank, as `Worker.start` does for a rank with ports."""
        endpoint = Endpoint(_ADDRESS, None)
        channel = FaultySession(network.channels, rank, servicer)
        session = Session(configure_channel(endpoint), channel, _JOB)  # type: ignore[arg-type]
        await session._join(
            pb.Join(
                job=_JOB,
                rank=rank,
                world_size=self._config.world_size,
                host=f"host{rank}",
                pid=1000 + rank,
                port=1,
                heartbeat_window=self._config.heartbeat_window,
            )
        )
        worker = Worker(self._config, WorldRendezvous(endpoint), NoPorts(), session)
        worker._mesh.attach(FaultyFabric(network, rank, worker._mesh))
        worker.world = await worker.open_group(WORLD, range(self._config.world_size))
        session.start(worker)
        group = Group(worker.world, _StallingExecutor(self, rank), self._config.timeout)
        return FaultyRank(worker, channel, group)

    async def _kill(self, rank: int, at: float) -> None:
        await asyncio.sleep(at - self.now())
        await self.kill(rank)


class _StallingExecutor:
    """Executor that passes on a rank's calls unless stalled."""

    callbacks = None

    def __init__(self, world: FaultyWorld, rank: int) -> None:
        self._world = world
        self._rank = rank

    def call(self, act: Callable[..., object], *arguments: object) -> None:
        loop, wires = self._world._loop, self._world._channels
        now = wires.clock.now()
        # Nothing comes to oneself but over a stall.
        late = wires.plan.held_until((self._rank, self._rank), now) - now
        if late > 0:
            loop.call_later(late, act, *arguments)
        else:
            loop.call_soon(act, *arguments)

    def run_on_caller_thread(self, act: Callable[[], bool]) -> bool:
        return False  # it runs already, and calls are made on it
