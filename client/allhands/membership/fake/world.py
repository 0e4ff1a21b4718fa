"""A membership in a world of which only this rank exists: no coordinator, no links, no peers."""

import os
import socket
from collections.abc import Callable, Sequence

from allhands.config import WorldConfig
from allhands.coordinator.endpoint import Address, Endpoint
from allhands.coordinator.member_session import MemberSession
from allhands.coordinator.rendezvous import WorldRendezvous
from allhands.coordinator.session_listener import SessionListener
from allhands.coordinator.world_member import WorldMember
from allhands.engine.group_engine import EngineConfig
from allhands.errors import AllhandsError
from allhands.membership.fake.engine import FakeEngine
from allhands.membership.worker import WORLD, Worker
from allhands.runtime.loop_thread import LoopThread
from allhands.runtime.sections import SectionPosition
from allhands.transport.ports import NoPorts
from allhands.verdicts import Verdict
from allhands_proto.v1 import coordinator_pb2 as wire

_FAKE_ENDPOINT = Endpoint(Address("fake", 1), None)


class FakeThread(LoopThread):
    """The thread of a fake world: runs coroutines; calls run on the caller's thread."""

    def call(self, act: Callable[..., object], *arguments: object) -> None:
        self._check_alive()
        act(*arguments)

    def run_on_caller_thread(self, act: Callable[[], bool]) -> bool:
        return False


class FakeSession(MemberSession):
    """A session without a coordinator: requests are dropped, and no event comes."""

    def __init__(self, config: WorldConfig) -> None:
        self.joined = wire.Joined(rank=config.rank)
        self.epoch = 1
        self.group = ""
        host, pid = socket.gethostname(), os.getpid()
        self.members = tuple(
            WorldMember(rank, host, pid, "", False, 0, "") for rank in range(config.world_size)
        )

    @property
    def report_nbytes(self) -> int:
        return 0

    def start(self, listener: SessionListener) -> None:
        pass

    async def open_group(self, name: str, ranks: Sequence[int]) -> None:
        pass

    async def close_group(self, name: str) -> None:
        pass

    async def wait_monitored_barrier(
        self, group: str, sequence: int, timeout: float
    ) -> Verdict | None:
        return None

    async def judge(
        self, group: str, sequence: int, operation: str, waiting_on: Sequence[int], timeout: float
    ) -> Verdict | None:
        return None

    async def request_group_change(
        self, request: wire.GroupChangeRequest, timeout: float
    ) -> wire.GroupChange:
        raise AllhandsError(
            f"{request.kind} of group {request.group!r} is not possible: the group is fake, "
            "and has no coordinator"
        )

    async def all_present(self, ranks: Sequence[int]) -> bool:
        return True

    async def report_broken_link(self, rank: int, reason: str, shares_memory: bool) -> None:
        pass

    def send(self, request: wire.SessionRequest) -> None:
        pass

    def send_last_report(
        self,
        progress: Sequence[wire.Progress],
        section: SectionPosition | None,
        report: Callable[[int], bytes],
    ) -> None:
        pass

    def handle_event(self, event: wire.SessionEvent, listener: SessionListener) -> None:
        pass

    async def flush(self) -> None:
        pass

    async def leave(self, leave: wire.Leave) -> None:
        pass


class FakeWorker(Worker):
    """A rank of a fake world."""

    @classmethod
    async def start(cls, config: WorldConfig) -> "FakeWorker":
        worker = cls(config, WorldRendezvous(_FAKE_ENDPOINT), NoPorts(), FakeSession(config))
        worker.world = await worker.open_group(WORLD, range(config.world_size))
        return worker

    async def open_group(
        self,
        name: str,
        ranks: Sequence[int],
        timeout: float | None = None,
        caller_ranks: Sequence[int] | None = None,
        verify: bool | None = None,
    ) -> FakeEngine:
        ranks = tuple(ranks)
        engine = FakeEngine(
            name,
            ranks,
            ranks.index(self.rank),
            self._mesh,
            self,
            self._threads,
            EngineConfig(
                timeout=timeout or self.config.timeout,
                caller_ranks=caller_ranks,
                recorder_size=self.config.recorder_size,
            ),
        )
        self._engines[name] = engine
        for tell in self._world_events:
            tell(engine)
        return engine

    async def leave(self, error: str = "", traceback: str = "", aborts: bool = False) -> None:
        if self._is_closed:
            return
        self._is_closed = True

        def make_closed_error(what: str) -> AllhandsError:
            return AllhandsError(f"{what} cannot run: this rank has left the group")

        for engine in self._engines.values():
            engine.shut_down(make_closed_error)
            engine.close()
