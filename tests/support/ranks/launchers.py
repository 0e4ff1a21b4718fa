"""Launchers started by tests: `allhands run`, its output, and scripts for it."""

import inspect
import os
import queue
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.ranks.output import OutputReader

PATIENCE = 30.0

COMMAND = (sys.executable, "-m", "allhands.cli.main", "run")


def as_script(program: Callable[..., object], *arguments: Any) -> tuple[str, ...]:
    """Return the script and its arguments that call a function of `launched*` in `programs`."""
    path = inspect.getsourcefile(program)
    assert path is not None
    return path, program.__name__, *map(str, arguments)


def environment(tmp_path: Path) -> dict[str, str]:
    """Return this process's, with a runtime directory of the test's own and a number of threads."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if "ALLHANDS" not in name}
    return {"OMP_NUM_THREADS": "1", **kept, "XDG_RUNTIME_DIR": str(runtime)}


@dataclass
class Launcher:
    """A started launcher and its output so far."""

    process: subprocess.Popen[bytes]
    lines: "queue.Queue[str]" = field(default_factory=queue.Queue)
    errors: list[str] = field(default_factory=list)
    said: threading.Event = field(default_factory=threading.Event)
    """Something stands in `errors`."""

    def __post_init__(self) -> None:
        self._reader = OutputReader()
        self._reader.read(self.process.stdout, lambda line: self.lines.put(_decode(line)))
        self._reader.read(self.process.stderr, self._take_error)

    def _take_error(self, line: bytes) -> None:
        self.errors.append(_decode(line))
        self.said.set()

    def line(self) -> str:
        return self.lines.get(timeout=PATIENCE)

    def status(self) -> int:
        """Wait for the end of the launcher; return its exit status."""
        status = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return status

    def output(self) -> list[str]:
        """Return the output since the last look."""
        return [self.lines.get_nowait() for _ in range(self.lines.qsize())]


def _decode(line: bytes) -> str:
    return line.decode(errors="backslashreplace").removesuffix("\n")


Start = Callable[..., Launcher]


def ends(pid: int) -> bool:
    """Wait until the process is gone; say whether that came within patience."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], PATIENCE)[0])
    finally:
        os.close(descriptor)


def pids_of_hanging(running: Launcher, ranks: int) -> list[int]:
    return [int(pid) for _ in range(ranks) for pid in running.line().split()[2:]]
