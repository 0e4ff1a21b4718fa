"""Processes of a launch: the ranks, and the reaper that outlives the launcher."""

import logging
import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from allhands.launcher.child import Child
from allhands.launcher.reaper import kill_all
from allhands.runtime.exit_notice import LAUNCH_VARIABLE
from allhands_proto.quick_dataclass import dataclass

logger = logging.getLogger(__name__)

# Isolated and without site packages: they start in a few milliseconds, whatever is installed.
_BARE_PYTHON = (sys.executable, "-I", "-S")
_PDEATHSIG_EXEC = str(Path(__file__).with_name("pdeathsig_exec.py"))
_REAPER = str(Path(__file__).with_name("reaper.py"))


@dataclass(frozen=True, slots=True)
class RankProcess:
    """A started rank, with the reading ends of the output pipes, non-blocking.

    Whoever reads them closes them.
    """

    rank: int
    child: Child
    stdout: int
    stderr: int


@dataclass(slots=True)
class OutputPipes:
    """Two pipes from a rank that is about to start; the reading ends are non-blocking."""

    stdout_source: int
    stderr_source: int
    stdout_target: int
    stderr_target: int
    _open: set[int]

    @classmethod
    @contextmanager
    def open(cls) -> "Iterator[OutputPipes]":
        """Open the pipes; what is not kept is closed at the end.

        Raises:
            OSError: the system has no more descriptors.
        """
        opened: set[int] = set()
        try:
            ends = []
            for _ in range(2):
                source, target = os.pipe()
                opened |= {source, target}
                os.set_blocking(source, False)
                ends.append((source, target))
            (stdout, stdout_target), (stderr, stderr_target) = ends
            yield cls(stdout, stderr, stdout_target, stderr_target, opened)
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def close_targets(self) -> None:
        """Close the writing ends, which the rank has by now."""
        for descriptor in (self.stdout_target, self.stderr_target):
            self._open.discard(descriptor)
            os.close(descriptor)

    def keep_sources(self) -> tuple[int, int]:
        """Return the reading ends of stdout and stderr; the caller is to close them."""
        self._open -= {self.stdout_source, self.stderr_source}
        return self.stdout_source, self.stderr_source


def make_rank_command(
    program: Sequence[str], cpus: Collection[int] | None = None
) -> tuple[str, ...]:
    """Return the command of a process that runs a rank's program, and dies with this process."""
    bound = ",".join(map(str, sorted(cpus or ()))) or "-"
    return (*_BARE_PYTHON, _PDEATHSIG_EXEC, str(os.getpid()), bound, *program)


def choose_input(rank: int) -> int:
    """Return what a rank reads as its standard input, as `subprocess` takes it.

    Rank 0 reads that of this process if it is a file or a pipe, and the others nothing. A terminal
    gives input to one session only, which that of a rank is not.
    """
    return 0 if rank == 0 and not os.isatty(0) else subprocess.DEVNULL


def start_rank(
    rank: int,
    program: Sequence[str],
    environment: Mapping[str, str],
    cpus: Collection[int] | None = None,
    stdin: int = subprocess.DEVNULL,
) -> RankProcess:
    """Start a rank's program: the path of an executable, and its arguments.

    The rank dies with the calling thread. It is bound to `cpus`; None: it is not bound. `stdin` is
    as `subprocess` takes it.

    Raises:
        OSError: the system refused to start the process.
    """
    with OutputPipes.open() as pipes:
        child = Child.start(
            make_rank_command(program, cpus),
            environment,
            stdin=stdin,
            stdout=pipes.stdout_target,
            stderr=pipes.stderr_target,
        )
        return RankProcess(rank, child, *pipes.keep_sources())


class ReaperProcess:
    """Kills the processes of a launch, also after a kill of the launcher; see `launcher.reaper`."""

    def __init__(self, launch: str) -> None:
        """Start the reaper of the processes whose environment names this launch.

        Raises:
            OSError: the system refused to start the process.
        """
        self._mark = f"{LAUNCH_VARIABLE}={launch}"
        self._groups: set[int] = set()
        # In a launch within a launch, the outer reaper must not take the inner one for a rank's
        # child: it has to outlive the inner launcher.
        environment = {name: value for name, value in os.environ.items() if name != LAUNCH_VARIABLE}
        heard, self._pipe = os.pipe()
        try:
            self._child = Child.start(
                (*_BARE_PYTHON, _REAPER, self._mark),
                environment,
                stdin=heard,
                stdout=subprocess.DEVNULL,
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(heard)

    def add_group(self, group: int) -> None:
        """Let the process group end with the launch."""
        self._groups.add(group)
        self._send(f"+{group}\n")

    def remove_group(self, group: int) -> None:
        """Forget a process group after its end: the number may be reused."""
        self._groups.discard(group)
        self._send(f"-{group}\n")

    def _send(self, line: str) -> None:
        try:
            os.write(self._pipe, line.encode())
        except BrokenPipeError:
            logger.warning("the guardian is gone; the ranks still die with this process")

    async def finish(self) -> None:
        """Kill the rest of the launch, and end the reaper."""
        os.close(self._pipe)
        await self._child.wait_ended()
        if self._child.reap() != 0:
            kill_all(self._groups, self._mark)
