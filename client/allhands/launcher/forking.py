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
from contextlib import ExitStack, contextmanager
from pathlib import Path

from allhands.launcher.child import Child
from allhands.launcher.fork_server import READY, VARIABLE
from allhands.launcher.processes import (
    OutputPipes,
    RankProcess,
    choose_input,
    make_rank_command,
)

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


async def fork_ranks(
    program: Sequence[str],
    environments: Mapping[int, Mapping[str, str]],
    cpus: Mapping[int, Collection[int]],
) -> list[RankProcess]:
    """Start the ranks, given with their environments, by forking one interpreter.

    They are children of this process, in all other ways too as `start_rank` starts them. Those
    in `cpus` are bound.

    Raises:
        ForkRefused: they cannot be forked.
        OSError: the system refused to start a process.
    """
    common = dict(set.intersection(*(set(one.items()) for one in environments.values())))
    with ExitStack() as stack:
        pipes = {rank: stack.enter_context(OutputPipes.open()) for rank in environments}
        stack.enter_context(_adopt_orphans())
        output = next(iter(pipes.values()))
        stdin = choose_input(min(environments))
        server = stack.enter_context(_ForkServer.start(program, common, stdin, output))
        await server.wait_ready()
        pids = {}
        for rank, environment in environments.items():
            variables = {
                name: value for name, value in environment.items() if name not in common
            } | {"PYTHONPATH": environment.get("PYTHONPATH")}
            has_input = choose_input(rank) != subprocess.DEVNULL
            pids[rank] = await server.fork(variables, has_input, pipes[rank])
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


class _ForkServer:
    """The interpreter that forks; killed, with what it has forked, unless it gets to its end."""

    def __init__(self, child: Child, channel: socket.socket, start: int) -> None:
        self._child = child
        self._channel = channel
        self._start = start
        """Writing end of a pipe from which each rank reads a byte before it goes on."""

    @classmethod
    @contextmanager
    def start(
        cls,
        program: Sequence[str],
        environment: Mapping[str, str],
        stdin: int,
        output: OutputPipes,
    ) -> "Iterator[_ForkServer]":
        """Start the interpreter with the command of the ranks.

        `stdin` is for the rank that has an input; what the interpreter says is a rank's `output`.
        """
        with ExitStack() as stack:
            channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(channel)
            channel.setblocking(False)
            awaited, start = os.pipe()
            stack.callback(os.close, start)
            try:
                path = environment.get("PYTHONPATH")
                child = Child.start(
                    make_rank_command(program),
                    {
                        **environment,
                        VARIABLE: f"{theirs.fileno()},{awaited},{os.getpid()}",
                        "PYTHONPATH": f"{_RANK_SITE}:{path}" if path else _RANK_SITE,
                    },
                    stdin=stdin,
                    stdout=output.stdout_target,
                    stderr=output.stderr_target,
                    descriptors=(theirs.fileno(), awaited),
                )
            finally:
                theirs.close()
                os.close(awaited)
            server = cls(child, channel, start)
            stack.callback(server._kill)
            yield server

    async def wait_ready(self) -> None:
        """Wait until it has imported what ranks need.

        Raises:
            ForkRefused: it cannot be forked, or did not get ready.
        """
        said = await self._receive(_READY_SECONDS)
        if said != READY:
            raise ForkRefused(said.decode() or "the interpreter to fork has ended early")

    async def fork(
        self, variables: Mapping[str, str | None], has_input: bool, pipes: OutputPipes
    ) -> int:
        """Fork a rank with these variables, and the server's input or none; return its pid."""
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

    def _kill(self) -> None:
        self._child.send_signal(signal.SIGKILL)
        self._child.reap()


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
