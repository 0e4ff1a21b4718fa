"""Ranks forked from an interpreter that has imported what they need: the launcher's part.

Of two ranks or more that saves most of what starting costs: NumPy, gRPC and allhands are imported
once. What the environment says before an interpreter starts is the same for all ranks then.
"""

import asyncio
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from allhands.launcher.child import Child
from allhands.launcher.environment import Placement
from allhands.launcher.fork_server import READY, VARIABLE
from allhands.launcher.processes import (
    OutputPipes,
    RankProcess,
    choose_input,
)

if TYPE_CHECKING:
    from allhands.launcher.plan import StartWay

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37  # linux/prctl.h
_RANK_SITE = str(Path(__file__).with_name("rank_site"))
_READY_SECONDS = 120.0
"""For which imports may take: from a slow network file system they do."""
_ANSWER_SECONDS = 30.0
_LONGEST_ANSWER = 4096
_MEASURERS = ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")
"""Variables of tools that begin to measure when an interpreter starts."""
_THREAD_COUNTS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
"""The first of them that is set says how many threads NumPy's library starts when it is loaded."""


class ForkRefused(Exception):
    """The ranks of a launch cannot be forked; the text says why. None has been started."""


def find_obstacle(program: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return why ranks with this command and environment cannot be forked; empty: they may."""
    interpreter, _, first = program[:3]
    if not _is_this_interpreter(interpreter):
        return f"{interpreter} is not the Python that runs allhands, {sys.executable}"
    if first.startswith("-") and first != "-m":
        return f"Python is given the option {first}"
    if name := next((one for one in _MEASURERS if environment.get(one)), ""):
        return f"{name} has each interpreter measured from its start"
    threads = next((one for one in _THREAD_COUNTS if environment.get(one)), "OMP_NUM_THREADS")
    if environment.get(threads, "1") != "1":
        return f"{threads} has NumPy start threads, which are not forked"
    return ""


def _is_this_interpreter(path: str) -> bool:
    # By folder too: two virtual environments may lead to one file.
    return os.path.dirname(path) == os.path.dirname(sys.executable) and os.path.samefile(
        path, sys.executable
    )


def start_early(
    program: Sequence[str],
    environment: Mapping[str, str],
    placement: Placement,
    way: "StartWay",
    *,
    is_python: bool,
) -> "ForkServer | None":
    """Start the interpreter that ranks are forked from; None: they are not, or it did not start.

    The caller is to close it. What is in the way is said when the ranks are to be forked.
    """
    try:
        check_way(program, environment, placement, way, is_python=is_python)
        return ForkServer.start(program, environment, placement.ranks.start)
    except (ForkRefused, OSError):
        return None


def check_way(
    program: Sequence[str],
    environment: Mapping[str, str],
    placement: Placement,
    way: "StartWay",
    *,
    is_python: bool,
) -> None:
    """Check that the ranks are to be forked, and can be as far as it shows.

    Raises:
        ForkRefused: they are not.
    """
    if way == "exec":
        raise ForkRefused("each is to start its own interpreter")
    if not is_python:
        raise ForkRefused("they are no Python")
    if obstacle := find_obstacle(program, environment):
        raise ForkRefused(obstacle)
    if placement.local_size == 1 and way != "fork":
        raise ForkRefused("there is one of them")


async def fork_ranks(
    server: "ForkServer",
    environments: Mapping[int, Mapping[str, str]],
    cpus: Mapping[int, Collection[int]],
) -> list[RankProcess]:
    """Fork the ranks, given with their environments; closes the server.

    They are children of this process, in all other ways too as `start_rank` starts them. Those
    in `cpus` are bound.

    Raises:
        ForkRefused: they cannot be forked.
        OSError: the system refused to start a process.
    """
    with ExitStack() as stack:
        stack.enter_context(closing(server))
        pipes = {
            rank: server.pipes if rank == server.rank else stack.enter_context(OutputPipes.open())
            for rank in environments
        }
        stack.enter_context(_adopt_orphans())
        await server.wait_ready()
        pids = {}
        for rank, environment in environments.items():
            has_input = choose_input(rank) != subprocess.DEVNULL
            pids[rank] = await server.fork(environment, has_input, pipes[rank])
        # All are children of this process when it has ended.
        await server.wait_ended()
        children = {rank: Child.adopt(pid) for rank, pid in pids.items()}
        for rank, bound in cpus.items():
            os.sched_setaffinity(pids[rank], bound)  # they have one thread each, and wait
        server.let_start(len(children))
        return [
            RankProcess(rank, child, *pipes[rank].keep_sources())
            for rank, child in children.items()
        ]


class ForkServer:
    """The interpreter that forks; killed, with what it has forked, unless it gets to its end."""

    def __init__(
        self,
        rank: int,
        environment: Mapping[str, str],
        child: Child,
        channel: socket.socket,
        start: int,
        pipes: OutputPipes,
        resources: ExitStack,
    ) -> None:
        self.rank = rank
        """The rank that has its input, and `pipes`, to which it writes what it says itself."""
        self.pipes = pipes
        self._environment = environment
        self._child = child
        self._channel = channel
        self._start = start
        """Writing end of a pipe from which each rank reads a byte before it goes on."""
        self._resources = resources

    @classmethod
    def start(cls, program: Sequence[str], environment: Mapping[str, str], rank: int) -> Self:
        """Start the interpreter with the command of the ranks; it begins to import at once.

        Of the ranks' environments `environment` has what an interpreter or a library may read when
        it is loaded; `rank` is the first of them. The caller is to close the server.

        Raises:
            OSError: the system refused to start a process.
        """
        with ExitStack() as stack:
            pipes = stack.enter_context(OutputPipes.open())
            channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(channel)
            channel.setblocking(False)
            awaited, start = os.pipe()
            stack.callback(os.close, start)
            try:
                path = environment.get("PYTHONPATH")
                child = Child.start(
                    program,
                    {
                        **environment,
                        VARIABLE: f"{theirs.fileno()},{awaited},{os.getpid()}",
                        "PYTHONPATH": f"{_RANK_SITE}:{path}" if path else _RANK_SITE,
                    },
                    stdin=choose_input(rank),
                    stdout=pipes.stdout_target,
                    stderr=pipes.stderr_target,
                    descriptors=(theirs.fileno(), awaited),
                )
            finally:
                theirs.close()
                os.close(awaited)
            stack.callback(_kill, child)
            return cls(rank, environment, child, channel, start, pipes, stack.pop_all())

    def close(self) -> None:
        """End the interpreter, and what it has forked and not let start. Idempotent."""
        self._resources.close()

    async def wait_ready(self) -> None:
        """Wait until it has imported what ranks need.

        Raises:
            ForkRefused: it cannot be forked, or did not get ready.
        """
        said = await self._receive(_READY_SECONDS)
        if said != READY:
            raise ForkRefused(said.decode() or "the interpreter to fork has ended early")

    async def fork(
        self, environment: Mapping[str, str], has_input: bool, pipes: OutputPipes
    ) -> int:
        """Fork a rank with this environment, and the server's input or none; return its pid."""
        variables = _list_changes(self._environment, environment)
        targets = [pipes.stdout_target, pipes.stderr_target]
        # A message at a time, so that there is always room for it.
        socket.send_fds(self._channel, [json.dumps([variables, has_input]).encode()], targets)
        pipes.close_targets()
        if not (pid := await self._receive(_ANSWER_SECONDS)):
            raise OSError("the interpreter to fork has ended early")
        return int(pid)

    async def wait_ended(self) -> None:
        """Tell it that no rank is to come, and wait for its end."""
        self._channel.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(_ANSWER_SECONDS):
            await self._child.wait_ended()

    def let_start(self, count: int) -> None:
        """Let all ranks run their program."""
        os.write(self._start, bytes(count))

    async def _receive(self, timeout: float) -> bytes:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout):
            return await loop.sock_recv(self._channel, _LONGEST_ANSWER)


def _list_changes(
    before: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str | None]:
    """Return what turns one environment into another; None: the name is taken away."""
    gone = dict.fromkeys(before.keys() - environment.keys())
    changed = {name: value for name, value in environment.items() if before.get(name) != value}
    # The server itself has another path.
    return {**gone, **changed, "PYTHONPATH": environment.get("PYTHONPATH")}


def _kill(child: Child) -> None:
    child.send_signal(signal.SIGKILL)
    child.reap()


@contextmanager
def _adopt_orphans() -> Iterator[None]:
    """Become the parent of processes below this one whose parent ends.

    Raises:
        OSError: the system does not know that.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    before = ctypes.c_int()
    for arguments in (
        (_PR_GET_CHILD_SUBREAPER, ctypes.byref(before)),
        (_PR_SET_CHILD_SUBREAPER, 1),
    ):
        if prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, before.value)
