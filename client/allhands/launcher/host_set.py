"""The ranks of several hosts: an agent on each starts them, and this side decides.

What is decided, in what order and with what words, is as for ranks of one host: agents relay what
`supervision` asks for. An agent ends its ranks when its standard input ends, whoever ends that.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Collection
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, field
from importlib import metadata
from pathlib import Path
from typing import Any

from allhands.escapes import escape_line
from allhands.launcher.agent import AgentPlan
from allhands.launcher.agent_protocol import (
    MESSAGE,
    TEE,
    ForeignAnswer,
    decode_message,
    encode_line,
    open_reader,
    read_frame,
)
from allhands.launcher.child import Child
from allhands.launcher.own_events import Note, ignore_note
from allhands.launcher.plan import LaunchHost, LaunchPlan
from allhands.launcher.rank_set import RankSet
from allhands.launcher.supervision import (
    BlamedRank,
    LaunchBroken,
    PeerLossReported,
    RankExited,
    RankExiting,
    Supervisor,
)
from allhands_proto.quick_dataclass import dataclass

_GREETING_SECONDS = 60.0
"""Until a host has connected, and its Python has started; ssh itself gives up before."""
_END_SECONDS = 5.0
_ERRORS_KEPT = 4
_TLS_FIELDS = ("tls_ca", "tls_cert", "tls_key")
_STDERR = 2
_NO_PYTHON = 127
_NO_MODULE = "No module named"


@dataclass(slots=True)
class _Agent:
    """An agent, as the launcher sees it."""

    node: int
    host: LaunchHost
    ranks: range
    child: Child
    reader: asyncio.StreamReader
    errors: asyncio.StreamReader
    transports: tuple[asyncio.BaseTransport, ...]
    input: asyncio.WriteTransport
    last_errors: list[str] = field(default_factory=list)
    error_task: "asyncio.Task[None] | None" = None
    status: int | None = None
    """None: not known yet."""
    host_name: str = ""
    """What it calls itself."""

    def send(self, **fields: object) -> None:
        if not self.input.is_closing():
            self.input.write(encode_line(fields))


class HostSet(RankSet):
    """The running ranks of several hosts."""

    def __init__(self, plan: LaunchPlan, note: Note = ignore_note) -> None:
        size = plan.placement.world_size
        super().__init__(plan, Supervisor(size, plan.min_size, plan.grace), note=note)
        self._count = size
        self._agents: list[_Agent] = []
        self._nodes: dict[int, int] = {}
        """Of each rank."""
        self._has_begun = False

    def _prepare(self, stack: AsyncExitStack) -> Awaitable[None]:
        stack.push_async_callback(self._end_agents)
        return self._run_hosts()

    async def _run_hosts(self) -> None:
        for node in range(len(self._plan.hosts)):
            self._agents.append(await self._start_agent(node))
        if problems := [one for one in await self._await_greetings() if one]:
            self.handle(LaunchBroken("; ".join(problems)))
        elif self._supervisor.problem is None:
            self._has_begun = True
            async with asyncio.TaskGroup() as attendants:
                for agent in self._agents:
                    agent.send(**asdict(self._make_agent_plan(agent.node)))
                    attendants.create_task(self._attend_agent(agent))
        if text := self._summarize():
            await self.print(text)

    async def _start_agent(self, node: int) -> _Agent:
        host, counts = self._plan.hosts[node], self._plan.placement.counts
        first = sum(counts[:node])
        loop = asyncio.get_running_loop()
        (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr) = (
            os.pipe() for _ in range(3)
        )
        try:
            child = Child.start(host.command, os.environ, stdin=stdin, stdout=stdout, stderr=stderr)
        except OSError as error:
            for descriptor in (to_stdin, from_stdout, from_stderr):
                os.close(descriptor)
            raise OSError(
                error.errno, f"{host.command[0]} could not be started: {error.strerror}"
            ) from error
        finally:
            for descriptor in (stdin, stdout, stderr):
                os.close(descriptor)
        reader, transport = await open_reader(from_stdout)
        errors, error_transport = await open_reader(from_stderr)
        writing, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(to_stdin, "wb", 0))
        ranks = range(first, first + counts[node])
        self._nodes.update(dict.fromkeys(ranks, node))
        agent = _Agent(
            node, host, ranks, child, reader, errors, (transport, error_transport), writing
        )
        agent.error_task = asyncio.create_task(self._read_errors(agent))
        return agent

    async def _await_greetings(self) -> list[str]:
        """Wait for all agents; return the problems with them, empty where there is none."""
        return await asyncio.gather(*(self._await_greeting(agent) for agent in self._agents))

    async def _await_greeting(self, agent: _Agent) -> str:
        try:
            async with asyncio.timeout(_GREETING_SECONDS):
                frame = await read_frame(agent.reader)
            told = None if frame is None else decode_message(frame[1])
        except TimeoutError:
            return f"host {agent.host.name} did not answer within {_GREETING_SECONDS:g} s"
        except ForeignAnswer as error:
            return (
                f"host {agent.host.name}: {error}; does its shell print something at the start of "
                "sessions without a terminal?"
            )
        if told is None:
            return await self._explain_end(agent)
        here, there = metadata.version("allhands"), str(told.get("version"))
        if here != there:
            return (
                f"host {agent.host.name} has allhands {escape_line(there)}, and this one {here}: "
                "install the same version, or name another Python with --remote-python"
            )
        agent.host_name = escape_line(str(told.get("host")))
        return ""

    async def _explain_end(self, agent: _Agent) -> str:
        """Say why an agent ended before it should have."""
        await agent.child.wait_ended()
        if agent.error_task is not None:
            await asyncio.wait([agent.error_task], timeout=1.0)
        status = agent.status = agent.child.reap() if agent.status is None else agent.status
        said = "; ".join(agent.last_errors) or "no word of why"
        name, python = agent.host.name, "name another Python with --remote-python"
        if any(_NO_MODULE in one for one in agent.last_errors):
            return (
                f"host {name}: its Python has no allhands ({said}): install it there, or {python}"
            )
        if status == _NO_PYTHON:
            return f"host {name}: there is no such Python ({said}): {python}"
        return f"host {name}: its agent ended with status {status} ({said})"

    def _make_agent_plan(self, node: int) -> AgentPlan:
        plan = self._plan
        endpoint = asdict(plan.endpoint)
        files = {name: Path(endpoint[name]).read_text() for name in _TLS_FIELDS if endpoint[name]}
        executable, *arguments = plan.program
        if plan.is_python and executable == sys.executable:
            executable = plan.hosts[node].python or executable
        return AgentPlan(
            program=[executable, *arguments],
            counts=list(plan.placement.counts),
            node=node,
            endpoint=endpoint,
            environment=dict(plan.shared_environment),
            files=files,
            master=plan.master,
            start=plan.start,
            is_python=plan.is_python,
            binds_cpus=plan.binds_cpus,
            has_tees=bool(plan.tees),
            restart_count=plan.restart_count,
        )

    async def _attend_agent(self, agent: _Agent) -> None:
        """Carry out what an agent relays, until all output of its ranks is out."""
        left = set(agent.ranks)
        while left:
            try:
                frame = await read_frame(agent.reader)
            except ForeignAnswer as error:
                self.handle(LaunchBroken(f"host {agent.host.name}: {error}"))
                return
            if frame is None:
                why = await self._explain_end(agent)
                self.handle(LaunchBroken(f"the ranks of a host were lost: {why}"))
                return
            descriptor, data = frame
            if descriptor == MESSAGE:
                await self._handle_message(agent, decode_message(data), left)
            else:
                await self._write_output(agent, descriptor, data)

    async def _write_output(self, agent: _Agent, descriptor: int, data: bytes) -> None:
        await self._output_priority.wait_turn(agent.node)
        if descriptor >= TEE:
            descriptor = self._plan.tees[descriptor - TEE]
        try:
            await self._writer.write([(descriptor, data)])
        except OSError as error:
            reason = f"the output of host {agent.host.name} could not be written: {error.strerror}"
            self.handle(LaunchBroken(reason))

    async def _handle_message(self, agent: _Agent, told: dict[str, Any], left: set[int]) -> None:
        match told:
            case {"started": int(rank), "pid": int(pid)}:
                self._pids[rank] = pid
                self._unflushed.add(rank)
            case {"exiting": int(rank), "is_failing": bool(is_failing)}:
                self.handle(RankExiting(rank, is_failing))
            case {"exited": int(rank), "status": int(status)}:
                self.handle(RankExited(rank, status))
                if status and self._supervisor.problem is None:
                    await self.print(
                        f"rank {rank} failed: {self._describe_end(rank, status)}; the others go on"
                    )
            case {"loss": int(rank), "cause": cause}:
                of = None if cause is None else _read_blamed(cause, self._count)
                self.handle(PeerLossReported(rank, of))
            case {"broken": str(reason)}:
                self.handle(LaunchBroken(f"host {agent.host.name}: {escape_line(reason)}"))
                left &= self._unflushed  # those that were started
            case {"flushed": int(rank)}:
                left.discard(rank)
                self._unflushed.discard(rank)
                self._output_priority.release(agent.node)

    def send_signal(self, signum: int, spare: Collection[int] = ()) -> None:
        if not self._has_begun:  # nothing is there to be signalled
            self._abandoned.set()
        for agent in self._agents:
            agent.send(signal=signum, excluded=list(spare))

    def _find_speaker(self, rank: int) -> int:
        """A host's agent has put the output of its ranks in order."""
        return self._nodes[rank]

    def _describe_process(self, rank: int) -> str:
        agent = self._agents[self._nodes[rank]]
        pid = f", pid {self._pids[rank]}" if rank in self._pids else ""
        return f"host {agent.host_name or agent.host.name}{pid}"

    async def _read_errors(self, agent: _Agent) -> None:
        """Show what ssh and the agent write to standard error."""
        while line := await agent.errors.readline():
            text = escape_line(line.decode(errors="backslashreplace").rstrip())
            agent.last_errors = [*agent.last_errors, text][-_ERRORS_KEPT:]
            if self._has_begun:
                with suppress(OSError):
                    shown = f"allhands: host {agent.host.name}: {text}\n"
                    await self._writer.write([(_STDERR, shown.encode())])

    async def _end_agents(self) -> None:
        """End the inputs of all agents, which end their ranks and themselves; then kill."""
        for agent in self._agents:
            agent.input.close()
        waits = [agent.child.wait_ended() for agent in self._agents if agent.status is None]
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await asyncio.gather(*waits)
        for agent in self._agents:
            if agent.status is None:
                agent.child.send_signal(9)
                agent.status = agent.child.reap()
            if agent.error_task is not None:
                agent.error_task.cancel()
                with suppress(asyncio.CancelledError):
                    await agent.error_task
            for transport in agent.transports:
                transport.close()


def _read_blamed(cause: dict[str, Any], size: int) -> BlamedRank:
    """Return the rank that another one blames: all of the world are of this launch."""
    rank = int(cause["rank"])
    return BlamedRank(rank, 0 <= rank < size, str(cause["state"]), escape_line(str(cause["text"])))
