"""The fork server's client: forks of a process with all imports done."""

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

PATIENCE = 60.0
"""Seconds that a test waits for what must come; none waits for time to pass."""

# Without the working directory among the paths of modules, which has folders named as packages are.
_COMMAND = (sys.executable, "-u", "-P", "-m", "support.ranks.fork_server")
_TESTS = str(Path(__file__).parents[2])
_PATHS = os.pathsep.join(filter(None, (_TESTS, os.environ.get("PYTHONPATH"))))


@dataclass
class Child:
    """A process forked by the fork server, with an interface like `subprocess.Popen`."""

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


class ForkServer:
    """The process that forks those of the tests: see `fork_server`. Not for several threads."""

    def __init__(self) -> None:
        self._door, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [*_COMMAND, str(other.fileno())],
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._started: queue.Queue[tuple[int, Future[int]]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, **request: Any) -> Child:
        """Fork a process that carries out the request, in its `environment`.

        It calls a `program`, given by module and function, or runs a `module`, with `arguments`.
        """
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
