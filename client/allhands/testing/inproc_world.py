"""A world of ranks within one event loop: groups as users have them, without processes.

For tests of what is called on a `Group`. The ranks speak over `transport.inproc`, and a fake
registry stands where a worker has its coordinator.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from allhands.collectives.hierarchical_plan import Layout, islands
from allhands.collectives.signature import Result
from allhands.engine.failures import call_errors
from allhands.engine.failures.call_errors import Failure
from allhands.engine.group_engine import GroupEngine
from allhands.engine.work.work import Work
from allhands.errors import AllhandsError, CoordinatorUnavailable
from allhands.group.group import Group
from allhands.transport.frame import Key, Kind
from allhands.transport.inproc import InprocFabric, Switchboard
from allhands.transport.mesh import Mesh
from allhands.verdicts import AbsentRank, CallCancellation, State, Verdict

WORLD = "world"
_TURNS = 500
"""Turns of the loop in which a few ranks come to rest; a message takes about five."""

Judge = Callable[[str, int, Sequence[int]], Verdict | CallCancellation | None]
"""Given group, sequence number and who is waited for, say who is absent; None: unknown."""


def unknown(group: str, sequence: int, waiting_on: Sequence[int]) -> None:
    """The verdict of a coordinator that cannot be reached."""


@asynccontextmanager
async def inproc_world(
    size: int,
    *,
    timeout: float = 10.0,
    verdict: Judge = unknown,
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


async def results(works: Iterable[Work]) -> list[Result]:
    """Wait for all works; return what they give, or raise the first failure once all have ended."""
    ended = await outcomes(works)
    for one in ended:
        if isinstance(one, BaseException):
            raise one
    return ended


async def outcomes(works: Iterable[Work]) -> list[Result | BaseException]:
    """Wait for all works; return what each gives, or what went wrong with it."""
    futures = [asyncio.wrap_future(work.get_future()) for work in works]
    return await asyncio.gather(*futures, return_exceptions=True)


class InprocRank:
    """What a worker is in a real world: registry of its engines, listener of its mesh."""

    def __init__(self, board: Switchboard, rank: int, judge: Judge) -> None:
        self.rank = rank
        self.mesh = Mesh(self, rank=rank)
        self.mesh.attach(InprocFabric(board, rank, self.mesh))
        self.engines: dict[str, GroupEngine] = {}
        self.gone: dict[int, str] = {}
        """Peers that this rank knows to have left or failed, and why."""
        self._judge = judge

    # ------------------------------------------------------------ Registry

    def name(self, rank: int) -> str:
        return f"rank {rank} (in process)"

    async def judge(
        self, group: str, sequence: int, operation: str, waiting_on: Sequence[int], timeout: float
    ) -> Verdict | CallCancellation | None:
        await asyncio.sleep(timeout)
        return self._judge(group, sequence, waiting_on)

    async def meet(self, group: str, sequence: int, timeout: float) -> Verdict | None:
        raise CoordinatorUnavailable("there is no coordinator in process")

    def gave_up(self, group: str, ranks: Sequence[int], sequence: int, reason: str) -> None:
        others = [rank for rank in ranks if rank != self.rank]
        key = Key(self.engines[group].hash, sequence)
        self.mesh.tell(others, Kind.GIVE_UP, key, reason.encode(), dial=True)

    def abort(self, group: str, reason: str) -> None:
        engine = self.engines[group]
        others = [rank for rank in engine.ranks if rank != self.rank]
        engine.fail(partial(call_errors.aborted, by=self.name(self.rank), reason=reason))
        self.mesh.tell(others, Kind.ABORT, Key(engine.hash, 0), reason.encode(), dial=True)

    def condition_of(self, rank: int) -> AbsentRank | None:
        return None

    def shares_memory(self, rank: int) -> bool:
        return False

    def watch_links(self, waiting_for: Callable[[], Iterable[int]]) -> Callable[[], None]:
        return lambda: None  # links within a process are never silent

    async def all_present(self, ranks: Sequence[int]) -> bool:
        return True

    # ------------------------------------------------------------ mesh Listener

    def refused(self, peer: int, key: Key, call: str) -> None:
        for engine in self.engines.values():
            if engine.hash == key.group and peer in engine.ranks:
                engine.refused(peer, key, call)

    def unlike(self, peer: int, key: Key) -> None:
        for engine in self.engines.values():
            if engine.hash == key.group and peer in engine.ranks:
                engine.unlike(peer, key)

    def link_broken(self, peer: int, reason: str) -> None:
        if peer not in self.gone:
            self.peer_failed(peer, f"cannot be reached: {reason}")

    def whereabouts(self) -> bytes:
        return b""

    def ponged(self, peer: int, payload: bytes) -> None:
        pass

    def told(self, peer: int, kind: Kind, key: Key, payload: bytes) -> None:
        for engine in self.engines.values():
            if engine.hash != key.group or peer not in engine.ranks:
                continue
            if kind is Kind.ABORT:
                failure = partial(call_errors.aborted, by=self.name(peer), reason=payload.decode())
                engine.fail(failure)
            else:
                engine.given_up(
                    key.sequence, CallCancellation(peer, self.name(peer), payload.decode())
                )

    # ------------------------------------------------------------ what becomes of peers

    def peer_failed(self, peer: int, reason: str) -> None:
        self.gone[peer] = reason
        failure = self._failure(peer, "dead", reason)
        for engine in self.engines.values():
            if peer in engine.ranks:
                engine.fail(failure)

    def peer_left(self, peer: int, completed: dict[str, int]) -> None:
        self.gone[peer] = "left the job"
        failure = self._failure(peer, "left", "left the job")
        for name, engine in self.engines.items():
            if peer in engine.ranks:
                engine.peer_left(peer, completed.get(name, 0), failure)

    def _failure(self, peer: int, state: State, reason: str) -> Failure:
        text = f"{self.name(peer)} {reason}"
        found = Verdict("", 0, "", (AbsentRank(peer, state, text),), text)
        return partial(call_errors.peer_failed, found=found, ranks=found.ranks)

    async def aclose(self) -> None:
        """End every call, then drop the links."""

        def closed(what: str) -> AllhandsError:
            return AllhandsError(f"{what} cannot run: this rank has left the group")

        for engine in self.engines.values():
            engine.fail(closed)
            await engine.idle()
        await self.mesh.aclose()


class InprocWorld:
    """The ranks, and the groups that they have opened."""

    callbacks = None

    def __init__(
        self,
        size: int,
        timeout: float,
        verdict: Judge,
        deterministic: bool = False,
        hosts: Sequence[str] = (),
        verify: bool = False,
    ) -> None:
        board = Switchboard()
        self._hosts = hosts
        self._verify = verify
        self._timeout = timeout
        self._deterministic = deterministic
        self._loop = asyncio.get_running_loop()
        self.ranks = [InprocRank(board, rank, verdict) for rank in range(size)]
        self.groups = self.open_group(WORLD, range(size))
        """The group of all ranks, as each of them has it."""

    def open_group(self, name: str, ranks: Sequence[int]) -> list[Group]:
        """Make a group of some ranks of the world; return it as each of them has it."""
        groups = []
        for place, rank in enumerate(ranks):
            owner = self.ranks[rank]
            layout = None
            if self._hosts and not self._deterministic:
                layout = Layout(islands([self._hosts[one] for one in ranks]), place)
            engine = GroupEngine(
                name,
                ranks,
                place,
                owner.mesh,
                owner,
                deterministic=self._deterministic,
                layout=layout,
                verify=self._verify,
            )
            owner.engines[name] = engine
            groups.append(Group(engine, self, self._timeout))
        return groups

    async def everywhere(self, call: Callable[[Group], Work]) -> list[Result]:
        """Make a call on the group of all ranks, by every rank; return the results by rank."""
        return await results([call(group) for group in self.groups])

    async def settle(self) -> None:
        """Let the ranks go on as far as they can without calls or time."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    async def leave(self, rank: int) -> None:
        """Let a rank leave in order: its calls end, its peers take all in, and are told."""
        await self._handed_over()
        leaver = self.ranks[rank]
        for engine in leaver.engines.values():
            await engine.idle()
        await leaver.mesh.drain()
        completed = {name: engine.position.completed for name, engine in leaver.engines.items()}
        for other in self._others(rank):
            other.peer_left(rank, completed)
        await leaver.aclose()

    async def fail(self, rank: int, reason: str = "died") -> None:
        """Let a rank disappear in the middle of whatever it does; its peers are told."""
        await self._handed_over()
        for other in self._others(rank):
            other.peer_failed(rank, reason)
        await self.ranks[rank].aclose()

    async def aclose(self) -> None:
        """End everything. Idempotent."""
        await self._handed_over()
        for one in self.ranks:
            one.gone = dict.fromkeys(range(len(self.ranks)), "the world has ended")
        for one in self.ranks:
            await one.aclose()

    def call(self, act: Callable[..., object], *arguments: object) -> None:
        """Call a function on the loop, soon: what a `Group` hands its calls over with."""
        self._loop.call_soon(act, *arguments)

    def lend(self, act: Callable[[], bool]) -> bool:
        return False  # it runs already, and calls are made on it

    async def _handed_over(self) -> None:
        """Return when every call made so far has come to its engine."""
        await asyncio.sleep(0)  # `call_soon` keeps the order, so what was called before has run

    def _others(self, rank: int) -> list[InprocRank]:
        return [one for one in self.ranks if one.rank != rank]
