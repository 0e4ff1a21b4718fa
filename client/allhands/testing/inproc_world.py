"""A world of ranks within one event loop: groups as users have them, without processes.

For tests of `Group`'s calls. The ranks are linked by `transport.inproc`, with a fake peer directory
in place of a worker's coordinator.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from allhands.collectives.hierarchical_plan import HostLayout, group_by_host
from allhands.collectives.signature import Result
from allhands.engine.failures import call_errors
from allhands.engine.failures.call_errors import ErrorFactory
from allhands.engine.group_engine import EngineConfig, GroupEngine
from allhands.engine.work.work import Work
from allhands.errors import AllhandsError, CoordinatorUnavailable
from allhands.group.group import Group
from allhands.runtime.helper_threads import HelperThreads
from allhands.transport.frame import FrameKind, MessageKey
from allhands.transport.inproc import InprocFabric, InprocNetwork
from allhands.transport.mesh import Mesh
from allhands.verdicts import AbsentRank, CallCancellation, State, Verdict

WORLD = "world"
_LOOP_PASSES = 500
"""Turns of the loop in which a few ranks come to rest; a message takes about five."""

VerdictFunction = Callable[[str, int, Sequence[int]], Verdict | CallCancellation | None]
"""Given group, sequence number and who is waited for, say who is absent; None: unknown."""


def judge_unknown(group: str, sequence: int, waiting_on: Sequence[int]) -> None:
    """Return the verdict of an unreachable coordinator: None."""


@asynccontextmanager
async def inproc_world(
    size: int,
    *,
    timeout: float = 10.0,
    verdict: VerdictFunction = judge_unknown,
    deterministic: bool = False,
    hosts: Sequence[str] = (),
    verify: bool = False,
) -> AsyncIterator["InprocWorld"]:
    """Give a world of `size` ranks for as long as the block lasts.

    `timeout` is the default of every call; `verdict` answers calls whose deadline has passed.
    With `hosts`, one for each rank, the ranks work as if they were there, without shared memory.
    Afterwards every call has ended, those still under way by an `AllhandsError`, and no task of
    the world is left.
    """
    world = InprocWorld(size, timeout, verdict, deterministic, hosts, verify)
    try:
        yield world
    finally:
        await world.aclose()


async def wait_results(works: Iterable[Work]) -> list[Result]:
    """Wait for all works; return the results, or raise the first failure after all ended."""
    ended = await wait_outcomes(works)
    for one in ended:
        if isinstance(one, BaseException):
            raise one
    return ended


async def wait_outcomes(works: Iterable[Work]) -> list[Result | BaseException]:
    """Wait for all works; return each result or exception."""
    futures = [asyncio.wrap_future(work.get_future()) for work in works]
    return await asyncio.gather(*futures, return_exceptions=True)


class InprocRank:
    """Stands for a worker: registry of engines and listener of the mesh."""

    def __init__(self, network: InprocNetwork, rank: int, judge: VerdictFunction) -> None:
        self.rank = rank
        self.mesh = Mesh(self, rank=rank)
        self.mesh.attach(InprocFabric(network, rank, self.mesh))
        self.engines: dict[str, GroupEngine] = {}
        self.departed: dict[int, str] = {}
        """Peers that this rank knows to have left or failed, and why."""
        self._judge = judge

    def describe_rank(self, rank: int) -> str:
        return f"rank {rank} (in process)"

    async def judge(
        self, group: str, sequence: int, operation: str, waiting_on: Sequence[int], timeout: float
    ) -> Verdict | CallCancellation | None:
        await asyncio.sleep(timeout)
        return self._judge(group, sequence, waiting_on)

    async def wait_monitored_barrier(
        self, group: str, sequence: int, timeout: float
    ) -> Verdict | None:
        raise CoordinatorUnavailable("there is no coordinator in process")

    def send_give_up(self, group: str, ranks: Sequence[int], sequence: int, reason: str) -> None:
        others = [rank for rank in ranks if rank != self.rank]
        key = MessageKey(self.engines[group].hash, sequence)
        self.mesh.send_control(others, FrameKind.GIVE_UP, key, reason.encode(), dial=True)

    def abort(self, group: str, reason: str) -> None:
        engine = self.engines[group]
        others = [rank for rank in engine.ranks if rank != self.rank]
        engine.fail(
            partial(
                call_errors.build_aborted_error, by=self.describe_rank(self.rank), reason=reason
            )
        )
        self.mesh.send_control(
            others, FrameKind.ABORT, MessageKey(engine.hash, 0), reason.encode(), dial=True
        )

    def get_condition(self, rank: int) -> AbsentRank | None:
        return None

    def shares_memory(self, rank: int) -> bool:
        return False

    def watch_links(self, waiting_for: Callable[[], Iterable[int]]) -> Callable[[], None]:
        return lambda: None  # links within a process are never silent

    async def are_all_present(self, ranks: Sequence[int]) -> bool:
        return True

    def on_nack(self, peer: int, key: MessageKey, call: str) -> None:
        for engine in self.engines.values():
            if engine.hash == key.group and peer in engine.ranks:
                engine.events.on_refused(peer, key, call)

    def on_mismatch(self, peer: int, key: MessageKey) -> None:
        for engine in self.engines.values():
            if engine.hash == key.group and peer in engine.ranks:
                engine.events.on_mismatch(peer, key)

    def on_link_broken(self, peer: int, reason: str) -> None:
        if peer not in self.departed:
            self.fail_peer(peer, f"cannot be reached: {reason}")

    def pong_payload(self) -> bytes:
        return b""

    def on_pong(self, peer: int, payload: bytes) -> None:
        pass

    def on_control(self, peer: int, kind: FrameKind, key: MessageKey, payload: bytes) -> None:
        for engine in self.engines.values():
            if engine.hash != key.group or peer not in engine.ranks:
                continue
            if kind is FrameKind.ABORT:
                failure = partial(
                    call_errors.build_aborted_error,
                    by=self.describe_rank(peer),
                    reason=payload.decode(),
                )
                engine.fail(failure)
            else:
                engine.events.on_given_up(
                    key.sequence, CallCancellation(peer, self.describe_rank(peer), payload.decode())
                )

    def fail_peer(self, peer: int, reason: str) -> None:
        self.departed[peer] = reason
        failure = self._make_failure(peer, "dead", reason)
        for engine in self.engines.values():
            if peer in engine.ranks:
                engine.fail(failure)

    def remove_peer(self, peer: int, completed: dict[str, int]) -> None:
        self.departed[peer] = "left the job"
        failure = self._make_failure(peer, "left", "left the job")
        for name, engine in self.engines.items():
            if peer in engine.ranks:
                engine.events.on_peer_left(peer, completed.get(name, 0), failure)

    def _make_failure(self, peer: int, state: State, reason: str) -> ErrorFactory:
        text = f"{self.describe_rank(peer)} {reason}"
        found = Verdict("", 0, "", (AbsentRank(peer, state, text),), text)
        return partial(call_errors.build_peer_failed_error, verdict=found, ranks=found.ranks)

    async def aclose(self) -> None:
        """End every call, then drop the links."""

        def make_error(what: str) -> AllhandsError:
            return AllhandsError(f"{what} cannot run: this rank has left the group")

        for engine in self.engines.values():
            engine.fail(make_error)
            await engine.wait_idle()
        await self.mesh.aclose()


class InprocWorld:
    """The ranks of the world, and their open groups."""

    callbacks = None

    def __init__(
        self,
        size: int,
        timeout: float,
        verdict: VerdictFunction,
        deterministic: bool = False,
        hosts: Sequence[str] = (),
        verify: bool = False,
    ) -> None:
        board = InprocNetwork()
        self._hosts = hosts
        self._verify = verify
        self._timeout = timeout
        self._deterministic = deterministic
        self._loop = asyncio.get_running_loop()
        self.ranks = [InprocRank(board, rank, verdict) for rank in range(size)]
        self.groups = self.open_group(WORLD, range(size))
        """The group of all ranks, as each of them has it."""

    def open_group(self, name: str, ranks: Sequence[int]) -> list[Group]:
        """Make a group of some ranks of the world; return the group's object of each."""
        groups = []
        for place, rank in enumerate(ranks):
            owner = self.ranks[rank]
            layout = None
            if self._hosts and not self._deterministic:
                layout = HostLayout(group_by_host([self._hosts[one] for one in ranks]), place)
            engine = GroupEngine(
                name,
                ranks,
                place,
                owner.mesh,
                owner,
                HelperThreads(),
                EngineConfig(
                    deterministic=self._deterministic,
                    layout=layout,
                    verify=self._verify,
                ),
            )
            owner.engines[name] = engine
            groups.append(Group(engine, self, self._timeout))
        return groups

    async def call_on_all(self, call: Callable[[Group], Work]) -> list[Result]:
        """Make a call on the group of all ranks, by every rank; return the results by rank."""
        return await wait_results([call(group) for group in self.groups])

    async def run_until_idle(self) -> None:
        """Run the ranks as far as possible without new calls or time."""
        for _ in range(_LOOP_PASSES):
            await asyncio.sleep(0)

    async def leave(self, rank: int) -> None:
        """Let a rank leave in order: calls end, sent data is drained, peers are notified."""
        await self._wait_handed_over()
        leaver = self.ranks[rank]
        for engine in leaver.engines.values():
            await engine.wait_idle()
        await leaver.mesh.drain()
        completed = {
            name: engine.progress.last_completed for name, engine in leaver.engines.items()
        }
        for other in self._list_others(rank):
            other.remove_peer(rank, completed)
        await leaver.aclose()

    async def fail(self, rank: int, reason: str = "died") -> None:
        """Let a rank vanish abruptly; the peers are notified."""
        await self._wait_handed_over()
        for other in self._list_others(rank):
            other.fail_peer(rank, reason)
        await self.ranks[rank].aclose()

    async def aclose(self) -> None:
        """End everything. Idempotent."""
        await self._wait_handed_over()
        for one in self.ranks:
            one.departed = dict.fromkeys(range(len(self.ranks)), "the world has ended")
        for one in self.ranks:
            await one.aclose()

    def call(self, act: Callable[..., object], *arguments: object) -> None:
        """Schedule a function on the loop: the executor of a `Group`'s calls."""
        self._loop.call_soon(act, *arguments)

    def run_on_caller_thread(self, act: Callable[[], bool]) -> bool:
        return False  # it runs already, and calls are made on it

    async def _wait_handed_over(self) -> None:
        """Wait until every call made so far has reached its engine."""
        await asyncio.sleep(0)  # `call_soon` keeps the order, so what was called before has run

    def _list_others(self, rank: int) -> list[InprocRank]:
        return [one for one in self.ranks if one.rank != rank]
