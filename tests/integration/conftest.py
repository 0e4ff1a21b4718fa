"""A real coordinator, and members of a job under the test's control."""

import asyncio
import contextlib
import itertools
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf.message import Message

from allhands.coordinator.client import Control
from allhands.testing.daemon import DaemonProcess, run_daemon
from allhands.testing.raw_member import RawMember
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.v1 import coordinator_pb2_grpc
from support.ranks.launchers import COMMAND, Launcher, Start, environment

_jobs = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the asyncio tests of the coordinator share an event loop.

    gRPC's poller is one for the process, and logs an error when it wakes a loop that is closed.
    """
    mark = pytest.mark.asyncio(loop_scope="session")
    for item in items:
        if item.path.name.startswith("test_coordinator_") and pytest_asyncio.is_async_test(item):
            item.add_marker(mark, append=False)


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon shared by the tests; each test has a separate job."""
    with run_daemon(tmp_path_factory.mktemp("runtime")) as running:
        yield running


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Start]:
    """Return a function to start a launcher; the rest of the launch is killed afterwards."""
    started: list[Launcher] = []

    def start(*arguments: str, prefix: Sequence[str] = (), **variables: str) -> Launcher:
        process = subprocess.Popen(
            [*prefix, *COMMAND, *arguments],
            env={**environment(tmp_path), **variables},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(Launcher(process))
        return started[-1]

    yield start
    for running in started:
        running.process.kill()
        running.status()
        for pipe in (running.process.stdout, running.process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def job_name() -> str:
    """A unique name of a job."""
    return f"job-{next(_jobs)}"


@pytest.fixture
def control(daemon: DaemonProcess, job_name: str) -> Iterator[Control]:
    """A client of the daemon, for the test's job."""
    with Control(daemon.endpoint, job=job_name, timeout=10) as made:
        yield made


@pytest.fixture
def join_job(daemon: DaemonProcess, job_name: str) -> Iterator[Callable[[int, int], RawMember]]:
    """Return a function to join the test's job with a rank and a world size."""
    made: list[RawMember] = []

    def join(rank: int, world_size: int) -> RawMember:
        request = wire.Join(
            job=job_name,
            rank=rank,
            world_size=world_size,
            host="node-a",
            pid=4000 + rank,
            port=5000 + rank,
            heartbeat_window=60,  # they beat only when they are told to
            label=f"label-{rank}",
        )
        made.append(RawMember(daemon.endpoint, request))
        made[-1].receive("joined")
        return made[-1]

    yield join
    for member in made:
        member.close()


class Caller:
    """The coordinator's raw calls, on the running loop."""

    def __init__(self, target: str, token: str | None, ca: bytes | None = None) -> None:
        if ca is None:
            self.channel = grpc.aio.insecure_channel(target)
        else:
            self.channel = grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(ca))
        self.stub = coordinator_pb2_grpc.CoordinatorStub(self.channel)
        self.metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        self.sessions: list[RawSession] = []

    def begin(
        self, method: str, request: Message, timeout: float | None = 10.0
    ) -> "grpc.aio.UnaryUnaryCall[Any, Any]":
        """Begin a call, which can be awaited or cancelled."""
        return getattr(self.stub, method)(request, timeout=timeout, metadata=self.metadata)

    async def call(self, method: str, request: Message, timeout: float | None = 10.0) -> Any:
        return await self.begin(method, request, timeout)

    async def refused(
        self, method: str, request: Message, timeout: float | None = 10.0
    ) -> grpc.aio.AioRpcError:
        """Make a failing call; return the error."""
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await self.call(method, request, timeout)
        return raised.value

    async def refused_in_time(
        self, method: str, request: Message, timeout: float
    ) -> grpc.aio.AioRpcError:
        """Make a call whose wait the coordinator ends before the deadline; return its error.

        Where the processor was busy beyond the deadline the caller's own timer came first: the
        call is made again, for longer.
        """
        for patience in (1, 2, 4, 8):
            error = await self.refused(method, request, timeout * patience)
            if error.details() != "Deadline Exceeded":
                return error
        raise AssertionError(f"{method}: the coordinator never answered before the deadline")

    async def open(self, *requests: wire.SessionRequest) -> "RawSession":
        """Open a session's stream and say something there."""
        session = RawSession(self.stub.Session(metadata=self.metadata))
        self.sessions.append(session)
        for request in requests:
            await session.stream.write(request)
        return session

    async def join(self, job: str, rank: int, size: int, **more: Any) -> "RawSession":
        """Join a job; return the session after the introduction."""
        join = wire.Join(job=job, rank=rank, world_size=size, host="h", pid=1, port=7, **more)
        session = await self.open(wire.SessionRequest(join=join))
        session.joined = (await session.hear("joined")).joined
        return session

    async def close(self) -> None:
        for session in self.sessions:
            session.stream.cancel()
        await self.channel.close()


class RawSession:
    """A session with messages of the test alone."""

    def __init__(self, stream: "grpc.aio.StreamStreamCall[Any, Any]") -> None:
        self.stream = stream
        self.joined = wire.Joined()

    async def say(self, **request: Message) -> None:
        await self.stream.write(wire.SessionRequest(**request))

    async def hear(self, *kinds: str) -> wire.SessionEvent:
        """Read until an event of one of these kinds."""
        async with asyncio.timeout(10):
            while (event := await self.stream.read()) is not grpc.aio.EOF:
                if event.WhichOneof("event") in kinds:
                    return event
        raise AssertionError(f"no {kinds}: {await self.ending()}")

    async def ending(self) -> tuple[grpc.StatusCode, str]:
        """Read to the end; return the status."""
        async with asyncio.timeout(10):
            with contextlib.suppress(grpc.aio.AioRpcError):
                while await self.stream.read() is not grpc.aio.EOF:
                    pass
            return await self.stream.code(), await self.stream.details()


@pytest_asyncio.fixture(loop_scope="session")
async def call_at() -> AsyncIterator[Callable[..., Caller]]:
    """Return a factory of a coordinator's callers: target, token, CA."""
    made: list[Caller] = []

    def make(target: str, token: str | None, ca: bytes | None = None) -> Caller:
        made.append(Caller(target, token, ca))
        return made[-1]

    yield make
    for caller in made:
        await caller.close()


@pytest_asyncio.fixture(loop_scope="session")
async def caller(daemon: DaemonProcess, call_at: Callable[..., Caller]) -> Caller:
    """A caller of the shared daemon."""
    return call_at(f"127.0.0.1:{daemon.notice.port}", daemon.notice.token)
