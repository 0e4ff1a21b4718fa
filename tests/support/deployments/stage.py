"""Stage: containers as processes of this host, with addresses, ports and paths of its own."""

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from allhands.testing.poll import poll_until
from support.deployments.pods import Pod
from support.ranks.launchers import Launcher
from support.served_daemon import find_free_port

ROOT = Path(__file__).parents[3]
_PROGRAMS = {
    "allhands": (sys.executable, "-m", "allhands.cli.main"),
    "python": (sys.executable,),
    "strace": ("strace",),
}
_KEPT = ("PATH", "PYTHONPATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPYCACHEPREFIX")


class Stage:
    """Runs what is written for other hosts, on loopback; a name becomes an address of loopback."""

    def __init__(self, folder: Path, service: str, ports: Sequence[int]) -> None:
        """Prepare `ports`, each in the place of one of the same number of `service`."""
        self.folder = folder
        self._ports = {port: find_free_port() for port in ports}
        self._service = service
        self.started: list[Launcher] = []
        """In order; the coordinator is the first."""
        self._environments: dict[int, Mapping[str, str]] = {}
        """Of the started processes, by pid."""

    def get_port(self, port: int) -> int:
        """Return the port in the place of that of the service."""
        return self._ports[port]

    def translate(self, text: str, paths: Mapping[str, str]) -> str:
        """Put what is here in the place of the service's name, of its ports, and of paths."""
        text = re.sub(rf"\b(?:{re.escape(self._service)}|0\.0\.0\.0)(?=:\d)", "127.0.0.1", text)
        text = re.sub(r"\d+", lambda found: str(self._ports.get(int(found[0]), found[0])), text)
        for there, here in paths.items():
            text = re.sub(rf"(?<![\w/]){re.escape(there)}(?![\w-])", here, text)
        return text

    def start(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        paths: Mapping[str, str],
        cwd: Path = ROOT,
    ) -> Launcher:
        """Start a command of the image, with these variables alone."""
        program, *arguments = (self.translate(word, paths) for word in command)
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        runtime = self.folder / f"runtime-{len(self.started)}"
        runtime.mkdir(mode=0o700)
        translated = {name: self.translate(text, paths) for name, text in variables.items()}
        own = {"XDG_RUNTIME_DIR": str(runtime), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [*_PROGRAMS[program], *arguments],
            env={**kept, **own, **translated},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.started.append(Launcher(process))
        self._environments[process.pid] = {**kept, **own, **translated}
        return self.started[-1]

    def run_beside(self, one: Launcher, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of the image in the container of a process that was started."""
        return subprocess.run(
            [*_PROGRAMS[command[0]], *command[1:]],
            env=self._environments[one.process.pid],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )

    def start_pod(self, pod: Pod, paths: Mapping[str, str]) -> Launcher:
        """Start the container of a pod, which sees no other pod's ports for peers as taken."""
        shifted = {"ALLHANDS_TLS_NAME": self._service}
        command, variables = pod.command, pod.environment
        for text in (*command, *variables.values()):
            if found := re.search(r"\b(30\d{3})-(30\d{3})\b", text):
                ours = _find_free_range(int(found[2]) - int(found[1]) + 1)
                command = [word.replace(found[0], ours) for word in command]
                variables = {name: one.replace(found[0], ours) for name, one in variables.items()}
                break
        return self.start(command, {**variables, **shifted}, paths)

    def start_daemon(
        self, command: Sequence[str], variables: Mapping[str, str], paths: Mapping[str, str]
    ) -> Launcher:
        """Start a coordinator, and wait until it listens."""
        daemon = self.start(command, variables, paths)
        poll_until(lambda: self._listens(daemon))
        return daemon

    def _listens(self, daemon: Launcher) -> bool:
        assert daemon.process.poll() is None, daemon.errors
        return any("listening on" in line for line in daemon.errors)

    def close(self) -> None:
        """Kill what has not ended."""
        for one in reversed(self.started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.process.pid, signal.SIGKILL)
            one.status()
            for pipe in (one.process.stdout, one.process.stderr):
                if pipe is not None:
                    pipe.close()


def _find_free_range(count: int) -> str:
    """Return LOW-HIGH of so many ports of loopback on which nothing listens."""
    for low in random.sample(range(15_000, 32_000, count), 100):
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for port in range(low, low + count):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return f"{low}-{low + count - 1}"
    raise AssertionError("a hundred ranges of ports are taken")


@contextlib.contextmanager
def open_stage(folder: Path, service: str, ports: Sequence[int]) -> Iterator[Stage]:
    """Open a stage for a block."""
    stage = Stage(folder, service, ports)
    try:
        yield stage
    finally:
        stage.close()
