"""Coordinators and rank processes for tests of whole jobs; all real."""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Job = Callable[..., list["Process"]]

PATIENCE = 60.0
"""Seconds that a test waits for what must come; none waits for time to pass."""

_PREAMBLE = """
import json, os, signal, sys, threading, time
import numpy as np
import allhands as ah

def tell(what, **more):
    sys.stdout.write(json.dumps({"what": what, **more}) + "\\n")
    sys.stdout.flush()

def hear():
    return sys.stdin.readline().strip()

def until(claim):
    '''Look again until a claim about another process is true: nothing tells of it.'''
    deadline = time.monotonic() + 20
    while not claim():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)

def failure(call):
    '''Run a call that must fail; return its error for `tell`.'''
    begun = time.monotonic()
    try:
        call()
    except Exception as error:
        return {
            "error": type(error).__name__,
            "text": str(error),
            "seconds": time.monotonic() - begun,
            "ranks": list(getattr(error, "failed_ranks", getattr(error, "missing_ranks", ()))),
            "seq": getattr(error, "seq", None),
            "op": getattr(error, "op", None),
        }
    return {"error": None, "text": "", "ranks": []}
"""


@dataclass
class Process:
    """A child that tells what happens to it in lines of JSON."""

    child: subprocess.Popen[str]
    lines: "queue.Queue[dict[str, Any] | None]" = field(default_factory=queue.Queue)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._readers = [
            threading.Thread(target=self._read_output, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def expect(self, what: str) -> dict[str, Any]:
        """Return the next thing told, which must be this one."""
        told = self.lines.get(timeout=PATIENCE)
        assert told is not None, f"ended instead of telling {what!r}: {''.join(self.errors)}"
        assert told["what"] == what, told
        return told

    def say(self, text: str = "") -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(text + "\n")
        self.child.stdin.flush()

    def ended(self) -> int:
        """Wait for the end; return the exit status."""
        status = self.child.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return status

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGCONT)
            self.child.kill()
        self.ended()
        for pipe in (self.child.stdin, self.child.stdout, self.child.stderr):
            if pipe is not None:
                pipe.close()

    def _read_output(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.lines.put(json.loads(line))
        self.lines.put(None)

    def _read_errors(self) -> None:
        assert self.child.stderr is not None
        self.errors.extend(self.child.stderr)


@dataclass
class Cluster:
    """Processes of one test, in a runtime directory of their own."""

    runtime: Path
    started: list[Process] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ALLHANDS_", "OMPI_", "PMI_", "SLURM_", "MASTER_"))
            and name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        }
        return {**kept, "XDG_RUNTIME_DIR": str(self.runtime), "OMP_NUM_THREADS": "1"}

    def start(self, script: str, enter: Sequence[str] = (), **environment: str) -> Process:
        """Start a Python process that runs `script` after the preamble above.

        `enter` is a command that runs it elsewhere, such as on another host.
        """
        child = subprocess.Popen(
            [*enter, sys.executable, "-u", "-c", _PREAMBLE + textwrap.dedent(script)],
            env={**self.environment, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        process = Process(child)
        self.started.append(process)
        return process

    def world(self, size: int, script: str, **environment: str) -> list[Process]:
        """Start a rank process for each rank of a world."""
        return [
            self.start(script, RANK=str(rank), WORLD_SIZE=str(size), **environment)
            for rank in range(size)
        ]

    def daemon(self) -> str:
        """Start `allhands serve` on a free port; return its URL."""
        child = subprocess.Popen(
            [sys.executable, "-m", "allhands.cli.main", "serve", "--listen", "127.0.0.1:0"],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        process = Process(child)
        self.started.append(process)
        assert child.stderr is not None
        return self._url_of(child.pid)

    def _url_of(self, pid: int) -> str:
        """Wait for the notice of the daemon with that process id."""
        import time

        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for path in Path(self.runtime, "allhands").glob("coordinator-*.json"):
                said = json.loads(path.read_text())
                if said["pid"] == pid:
                    return f"ah://127.0.0.1:{said['port']}"
            time.sleep(0.01)  # a file that appears: there is no portable event for that
        raise AssertionError("the daemon left no notice")

    def close(self) -> None:
        for process in reversed(self.started):
            process.close()


def free_port() -> int:
    """Return a port of loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
