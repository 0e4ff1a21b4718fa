"""Agent of a launch on another host: starts its ranks, and relays what they say and how they end.

Runs as `python -m allhands.launcher.agent`, over ssh. It greets the launcher, awaits the plan in a
line on its standard input, and decides nothing: signals come as further lines. When that input
ends, for whatever reason, so do the ranks.
"""

import asyncio
import json
import os
import platform
import socket
import sys
from collections.abc import Collection
from dataclasses import asdict
from importlib import metadata
from typing import Any

from allhands.launcher.agent_protocol import (
    MESSAGE,
    TEE,
    encode_frame,
    encode_message,
    open_reader,
)
from allhands.launcher.child import keep_statuses
from allhands.launcher.cpu_binding import deal_cpus, read_usable_cpus
from allhands.launcher.environment import JobEndpoint, Placement
from allhands.launcher.output import Writer, write_all
from allhands.launcher.plan import LaunchPlan
from allhands.launcher.processes import RankProcess, ReaperProcess
from allhands.launcher.rank_set import RankSet
from allhands.launcher.supervision import (
    Action,
    Event,
    LaunchBroken,
    PeerLossReported,
    RankExited,
    RankExiting,
    Supervisor,
)
from allhands.runtime.exit_notice import choose_directory
from allhands_proto.quick_dataclass import dataclass


class FrameWriter(Writer):
    """Writes output and messages as frames to the launcher, in the order in which they come."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def _write(self, descriptor: int, data: bytes) -> None:
        write_all(self._descriptor, encode_frame(descriptor, data))

    def post(self, **fields: object) -> None:
        """Send a message, without waiting; a launcher that is gone is noticed elsewhere."""
        done = self._queue([(MESSAGE, encode_message(fields))])
        done.add_done_callback(lambda written: written.cancelled() or written.exception())


class Relay(Supervisor):
    """Passes events on to the launcher, which decides."""

    def __init__(self, writer: FrameWriter) -> None:
        super().__init__()
        self._writer = writer

    def handle(self, event: Event) -> tuple[Action, ...]:
        match event:
            case RankExiting(rank, is_failing):
                self._writer.post(exiting=rank, is_failing=is_failing)
            case RankExited(rank, status):
                self._writer.post(exited=rank, status=status)
            case PeerLossReported(rank, cause):
                self._writer.post(loss=rank, cause=None if cause is None else asdict(cause))
            case LaunchBroken(reason):
                self._writer.post(broken=reason)
        return ()

    def on_signal(self) -> None:
        """Note that exits from now on are no failures."""
        self._excluded = ()


class AgentRankSet(RankSet):
    """The ranks of this host, for a launcher elsewhere."""

    def __init__(self, plan: LaunchPlan, writer: FrameWriter) -> None:
        self._relay = Relay(writer)
        self._frames = writer
        super().__init__(plan, self._relay, writer)

    def send_signal(self, signum: int, spare: Collection[int] = ()) -> None:
        self._relay.on_signal()
        super().send_signal(signum, spare)

    def _register(self, process: RankProcess, reaper: ReaperProcess) -> None:
        super()._register(process, reaper)
        self._frames.post(started=process.rank, pid=process.child.pid)

    async def _finish_rank(self, rank: int, status: int) -> None:
        self._unflushed.discard(rank)
        self._output_priority.release(rank)
        await self._frames.write([(MESSAGE, encode_message({"flushed": rank}))])

    def abandon(self) -> None:
        """Kill all ranks: nobody wants to know how they end."""
        self._abandoned.set()


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """What a launcher sends to an agent."""

    program: list[str]
    counts: list[int]
    node: int
    endpoint: dict[str, Any]
    """Of a `JobEndpoint`."""
    environment: dict[str, str]
    files: dict[str, str]
    """Contents of TLS files, by the fields of the endpoint that have their paths."""
    master: tuple[str, int]
    start: Any
    is_python: bool
    binds_cpus: bool
    has_tees: bool
    restart_count: int


def make_plan(told: AgentPlan) -> LaunchPlan:
    """Return the plan of this host's ranks."""
    placement = Placement.of_counts(told.counts, told.node)
    directory = choose_directory()
    paths = {name: os.path.join(directory, name) for name in told.files}
    others = tuple(told.endpoint["others"])
    return LaunchPlan(
        tuple(told.program),
        placement,
        JobEndpoint(**{**told.endpoint, "others": others, **paths}),
        {**os.environ, **told.environment},
        {rank: TEE + rank for rank in placement.ranks} if told.has_tees else {},
        (told.master[0], told.master[1]),
        start=told.start,
        is_python=told.is_python,
        cpus=deal_cpus(read_usable_cpus(), placement.ranks) if told.binds_cpus else {},
        restart_count=told.restart_count,
        files=told.files,
        directory=directory,
    )


async def serve(stdin: int, output: int) -> None:
    """Greet the launcher, run the ranks that it asks for, and return when they have ended."""
    writer = FrameWriter(output)
    reader, transport = await open_reader(stdin)
    try:
        greeting = {
            "version": metadata.version("allhands"),
            "python": platform.python_version(),
            "host": socket.gethostname(),
        }
        await writer.write([(MESSAGE, encode_message(greeting))])
        if not (line := await reader.readline()):
            return
        rank_set = AgentRankSet(make_plan(AgentPlan(**json.loads(line))), writer)
        commands = asyncio.create_task(_follow(reader, rank_set))
        try:
            with keep_statuses():
                await rank_set.run()
        finally:
            commands.cancel()
    finally:
        transport.close()


async def _follow(reader: asyncio.StreamReader, rank_set: AgentRankSet) -> None:
    """Carry out the launcher's messages until its end."""
    while line := await reader.readline():
        told = json.loads(line)
        rank_set.send_signal(told["signal"], told["excluded"])
    rank_set.abandon()


def main() -> None:
    # What is printed by accident must not get between the frames.
    output = os.dup(1)
    os.dup2(2, 1)
    stdin = os.dup(0)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    asyncio.run(serve(stdin, output))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
