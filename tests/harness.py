"""Coordinators and rank processes for tests of whole jobs; all real."""

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from allhands.coordinator.rendezvous import address_towards

Job = Callable[..., list["Process"]]

BACKENDS = ("auto", "socket", "grpc")
"""What carries the calls of ranks of one host; the first is shared memory."""

GRPC = pytest.param("grpc", marks=pytest.mark.nightly)
"""For tests that wait for seconds, of what is the same over any links."""

PATIENCE = 60.0
"""Seconds that a test waits for what must come; none waits for time to pass."""

_PREAMBLE = """
import dataclasses, json, os, signal, sys, threading, time
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

def as_json(verdict):
    return None if verdict is None else dataclasses.asdict(verdict)

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
            "label": getattr(error, "label", None),
            "by": getattr(error, "by", None),
            "reason": getattr(error, "reason", None),
            "verdict": as_json(getattr(error, "verdict", None)),
            "intact": getattr(error, "outputs_intact", None),
        }
    return {"error": None, "text": "", "ranks": []}
"""


@dataclass
class Child:
    """A process of a nursery's, much as `subprocess.Popen` has its own."""

    pid: int
    stdin: IO[str]
    stdout: IO[str]
    stderr: IO[str]
    status: "Future[int]"

    def poll(self) -> int | None:
        return self.status.result() if self.status.done() else None

    def wait(self, timeout: float) -> int:
        return self.status.result(timeout)

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and that is not known yet
            if not self.status.done():
                os.kill(self.pid, number)


class Nursery:
    """The process that forks those of the tests; see nursery.py. Not for several threads."""

    def __init__(self) -> None:
        self._door, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-u", Path(__file__).with_name("nursery.py"), str(other.fileno())],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._started: queue.Queue[tuple[int, Future[int]]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, **request: Any) -> Child:
        """Fork a process that runs a `script`, or a `module` with `arguments`, in `environment`."""
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        socket.send_fds(self._door, [json.dumps(request).encode()], theirs)
        for descriptor in theirs:
            os.close(descriptor)
        pid, status = self._started.get(timeout=PATIENCE)
        stdin, stdout, stderr = (
            os.fdopen(descriptor, mode)
            for descriptor, mode in ((pipes[0][1], "w"), (pipes[1][0], "r"), (pipes[2][0], "r"))
        )
        return Child(pid, stdin, stdout, stderr, status)

    def close(self) -> None:
        self._door.shutdown(socket.SHUT_WR)
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        self._door.close()

    def _read(self) -> None:
        running: dict[int, Future[int]] = {}
        while text := self._door.recv(4096):
            told = json.loads(text)
            if "started" in told:
                running[told["started"]] = Future()
                self._started.put((told["started"], running[told["started"]]))
            else:
                running.pop(told["ended"]).set_result(told["status"])


@dataclass(eq=False)
class Process:
    """A child that tells what happens to it in lines of JSON."""

    child: Child
    lines: "queue.Queue[dict[str, Any] | None]" = field(default_factory=queue.Queue)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._readers = [
            threading.Thread(target=self._read_output, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def expect(self, *what: str) -> dict[str, Any]:
        """Return the next thing told, which must be this one, or one of these."""
        told = self.lines.get(timeout=PATIENCE)
        assert told is not None, f"ended instead of telling {what}: {''.join(self.errors)}"
        assert told["what"] in what, told
        return told

    def say(self, text: str = "") -> None:
        self.child.stdin.write(text + "\n")
        self.child.stdin.flush()

    def ended(self) -> int:
        """Wait for the end; return the exit status."""
        status = self.child.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return status

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # nobody is left
            os.killpg(self.child.pid, signal.SIGKILL)
        self.ended()
        for pipe in (self.child.stdin, self.child.stdout, self.child.stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _read_output(self) -> None:
        for line in self.child.stdout:
            self.lines.put(json.loads(line))
        self.lines.put(None)

    def _read_errors(self) -> None:
        self.errors.extend(self.child.stderr)


@dataclass
class Cluster:
    """Processes of one test, in a runtime directory of their own."""

    runtime: Path
    nursery: Nursery
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

    def start(self, script: str, **environment: str) -> Process:
        """Start a Python process that runs `script` after the preamble above."""
        child = self.nursery.start(
            script=_PREAMBLE + textwrap.dedent(script),
            environment={**self.environment, **environment},
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
        child = self.nursery.start(
            module="allhands.cli.main",
            arguments=["serve", "--listen", "127.0.0.1:0"],
            environment=self.environment,
        )
        self.started.append(Process(child))
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


def address_beyond_loopback() -> str:
    """Return an address of this host that others reach; without one the test is skipped."""
    try:
        found = address_towards("192.0.2.1")
    except RuntimeError:
        found = "127.0.0.1"
    if found.startswith("127."):
        pytest.skip("this host has no address beyond loopback")
    return found


def free_port() -> int:
    """Return a port of loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
