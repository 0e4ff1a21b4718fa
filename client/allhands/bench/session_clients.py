"""Sessions of many ranks in one process, for the benchmark of sessions.

They join, beat, answer probes and make calls as ranks do, without groups of their own. Run as a
module: commands and results are lines of JSON.
"""

import argparse
import asyncio
import contextlib
import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import grpc
import grpc.aio
import uvloop

from allhands.coordinator.kv.barrier_requests import make_barrier, shorten_barrier
from allhands.coordinator.world_member import pack_ranks
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.v1 import coordinator_pb2_grpc

_JOB = "bench"
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1))
_JOINING = 200
"""Sessions that one process opens at once."""
_SECONDS = 300.0
_HOSTS = 8
"""Ranks that say they are of one host."""

Stream: TypeAlias = "grpc.aio.StreamStreamCall[wire.SessionRequest, wire.SessionEvent]"


class BenchSession:
    """The session of one rank, over a connection of its own."""

    def __init__(self, rank: int, size: int, target: str, token: str) -> None:
        self.rank = rank
        self._size = size
        self._metadata = (("authorization", f"Bearer {token}"),)
        self._channel = grpc.aio.insecure_channel(target, options=_OPTIONS)
        self._stub = coordinator_pb2_grpc.CoordinatorStub(self._channel)
        self._stream: Stream | None = None
        self._joined = wire.Joined()
        self._lock = asyncio.Lock()  # gRPC takes one write at a time
        self._sent = 0
        self._received = 0
        self._news = asyncio.Event()
        self._is_formed = False
        self._has_left = False
        self._lost: set[int] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self.heard: Counter[str] = Counter()
        """Number of events by kind."""

    async def join(self) -> None:
        """Join; return once the rank has its place."""
        join = wire.Join(
            job=_JOB,
            rank=self.rank,
            world_size=self._size,
            host=f"host{self.rank // _HOSTS}",
            pid=1000 + self.rank,
            port=5000,
            takes_batches=True,
            takes_conditions=True,
            takes_packed_members=True,
            takes_members_left=True,
        )
        stream: Stream = self._stub.Session(metadata=self._metadata)
        self._stream = stream
        await stream.write(wire.SessionRequest(join=join))
        event = await stream.read()
        assert isinstance(event, wire.SessionEvent)
        first = event.batch[0] if event.batch else event
        self._joined = first.joined
        for one in event.batch[1:]:
            await self._hear(one)
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._beat())]

    async def wait_formed(self) -> None:
        await self._wait(lambda: self._is_formed)

    async def wait_lost(self, rank: int) -> None:
        """Wait until the coordinator tells of the loss of a rank."""
        await self._wait(lambda: rank in self._lost)

    async def open_group(self, group: str) -> None:
        """Open a group of all ranks; return once the coordinator has taken that in."""
        self._sent += 1
        opened = wire.OpenGroup(group=group, spans=pack_ranks(range(self._size)))
        number = self._sent
        await self._write(wire.SessionRequest(open_group=opened, number=number))
        await self._wait(lambda: self._received >= number)

    async def wait_monitored_barrier(self, sequence: int) -> None:
        request = wire.MonitoredBarrierRequest(
            job=_JOB,
            member_id=self._joined.member_id,
            group="world",
            sequence=sequence,
            remaining=_SECONDS,
        )
        await self._stub.MonitoredBarrier(request, timeout=_SECONDS, metadata=self._metadata)

    async def wait_barrier(self, asked: wire.BarrierRequest) -> None:
        await self._stub.Barrier(asked, timeout=_SECONDS, metadata=self._metadata)

    async def leave(self) -> None:
        """Leave the world; return when the coordinator has taken that in."""
        await self._write(wire.SessionRequest(leave=wire.Leave()))
        await self._wait(lambda: self._has_left)
        await self._end()

    async def drop(self) -> None:
        """End the session without a word, as a process does that is killed."""
        await self._end()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        if self._stream is not None:
            self._stream.cancel()
        await self._channel.close()

    async def _wait(self, has_come: Callable[[], bool]) -> None:
        async with asyncio.timeout(_SECONDS):
            while not has_come():
                self._news.clear()
                await self._news.wait()

    async def _write(self, request: wire.SessionRequest) -> None:
        assert self._stream is not None, "no call before join"
        async with self._lock:
            await self._stream.write(request)

    async def _listen(self) -> None:
        assert self._stream is not None, "no news before join"
        with contextlib.suppress(grpc.RpcError):
            while isinstance(event := await self._stream.read(), wire.SessionEvent):
                for one in event.batch or (event,):
                    await self._hear(one)
                self._news.set()

    async def _hear(self, event: wire.SessionEvent) -> None:
        kind = event.WhichOneof("event")
        self.heard[kind or ""] += 1
        match kind:
            case "world_formed":
                assert event.world_formed.world_size == self._size
                self._is_formed = True
            case "member_lost":
                self._lost.add(event.member_lost.rank)
            case "leave_accepted":
                self._has_left = True
            case "received":
                self._received = event.received.number
            case "probe":
                beat = wire.Heartbeat(probe=event.probe.probe, sent_at=time.monotonic())
                await self._write(wire.SessionRequest(heartbeat=beat))

    async def _beat(self) -> None:
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            while True:
                await asyncio.sleep(self._joined.heartbeat_interval)
                progress = [wire.Progress(group="world", sequence=5, completed=5)]
                beat = wire.Heartbeat(sent_at=time.monotonic(), progress=progress)
                await self._write(wire.SessionRequest(heartbeat=beat))


class BenchSessions:
    """The sessions of this process: every `step`-th rank from `first` on."""

    def __init__(self, target: str, token: str, size: int, first: int, step: int) -> None:
        self._size = size
        make = range(first, size, step)
        self._sessions = [BenchSession(rank, size, target, token) for rank in make]
        self._barriers = 0
        self._groups = 0

    async def run(self, command: str) -> None:
        """Have all sessions do what the command says; return when they have.

        Raises:
            ValueError: no such command.
        """
        match command:
            case "join":
                limit = asyncio.Semaphore(_JOINING)
                await self._run_all(lambda one: _join_limited(one, limit))
                await self._run_all(BenchSession.wait_formed)
            case "monitored barrier":
                self._barriers += 1
                await self._run_all(lambda one: one.wait_monitored_barrier(self._barriers))
            case "named barrier":
                asked = make_barriers([str(rank) for rank in range(self._size)])
                await self._run_all(lambda one: one.wait_barrier(asked[one.rank]))
            case "new group":
                self._groups += 1
                await self._run_all(lambda one: one.open_group(f"g{self._groups}"))
            case "failure of one":
                if self._sessions[0].rank == 0:
                    await self._sessions.pop(0).drop()
                await self._run_all(lambda one: one.wait_lost(0))
            case "end":
                await self._run_all(BenchSession.leave)
            case _:
                raise ValueError(f"no command {command!r}")

    def count_events(self) -> dict[str, int]:
        """Return the number of events by kind."""
        return dict(sum((one.heard for one in self._sessions), Counter()))

    async def _run_all(self, act: Callable[[BenchSession], Awaitable[None]]) -> None:
        await asyncio.gather(*map(act, self._sessions))


def make_barriers(names: Sequence[str]) -> list[wire.BarrierRequest]:
    """Return the requests of all participants, in their order; the digest is computed once."""
    last = make_barrier(_JOB, "b", max(names), names)
    short = shorten_barrier(last) or last
    listers = short.message.first_participants
    found = []
    for name in names:
        asked = wire.BarrierRequest()
        asked.CopyFrom(last.message if name in listers else short.message)
        asked.participant = name
        found.append(asked)
    return found


async def _join_limited(session: BenchSession, limit: asyncio.Semaphore) -> None:
    async with limit:
        await session.join()


async def _serve(arguments: argparse.Namespace, token: str) -> None:
    sessions = BenchSessions(
        arguments.target, token, arguments.size, arguments.first, arguments.step
    )
    loop = asyncio.get_running_loop()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        if command != "count":
            await sessions.run(command)
        sys.stdout.write(json.dumps(sessions.count_events()) + "\n")
        sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m allhands.bench.session_clients")
    parser.add_argument("--target", required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--step", type=int, required=True)
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(_serve(arguments, sys.stdin.readline().strip()))


if __name__ == "__main__":
    main()
