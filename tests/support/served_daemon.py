"""A daemon that is killed, paused and started again, always at one address and on one folder."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from allhands.coordinator.endpoint import Address, Endpoint

SERVE = (sys.executable, "-m", "allhands.cli.main", "serve")
_TOKEN = "token-of-a-test"  # the same for each start
_HOST = "127.0.0.1"
_PORTS = range(15_000, 32_000)
"""Below those that the kernel gives to connections: one could take the port between two starts."""
_PATIENCE = 60.0


class ServedDaemon:
    """`allhands serve`, or a program like it, with a folder for its log."""

    def __init__(self, folder: Path, command: Sequence[str] = SERVE) -> None:
        """Prepare a daemon with the log in `folder / "data"`."""
        self._folder = folder
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.data_dir = folder / "data"
        self.port = find_free_port()
        self.log_lines: list[str] = []
        """Of all starts."""

    @property
    def endpoint(self) -> Endpoint:
        """Where clients find it."""
        return Endpoint(Address(_HOST, self.port), _TOKEN)

    @property
    def environ(self) -> dict[str, str]:
        """Environment of the daemon, and of commands for it."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ALLHANDS_")}
        return {
            **kept,
            "ALLHANDS_TOKEN": _TOKEN,
            "ALLHANDS_URL": f"ah://{_HOST}:{self.port}",
            "XDG_RUNTIME_DIR": str(self._folder),
            "PYTHONPATH": str(Path(__file__).parents[1]),
        }

    @property
    def process(self) -> "subprocess.Popen[str]":
        """The process of the last start."""
        assert self._process is not None, "it has not been started"
        return self._process

    def start(self, *arguments: str) -> None:
        """Start it, and wait until it listens.

        Raises:
            RuntimeError: it ended before; the text is its output.
        """
        self._start("--data-dir", str(self.data_dir), *arguments)

    def start_without_folder(self) -> None:
        """Start it with its state in memory alone."""
        self._start()

    def _start(self, *arguments: str) -> None:
        listen = ("--listen", f"{_HOST}:{self.port}")
        self._process = process = subprocess.Popen(
            [*self._command, *listen, "--drain-timeout", "5", *arguments],
            env=self.environ,
            stderr=subprocess.PIPE,
            text=True,
        )
        is_listening = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(process, is_listening))
        self._reader.start()
        assert is_listening.wait(_PATIENCE), "the daemon neither listens nor ends"
        if "listening" not in self.log_lines[-1]:
            raise RuntimeError("the daemon ended before it listened:\n" + "".join(self.log_lines))

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.process.kill()
        self.wait()

    def stop(self) -> int:
        """End it by SIGTERM; return its status."""
        self.process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Wait for its end; return its status."""
        status = self.process.wait(_PATIENCE)
        assert self._reader is not None
        self._reader.join(_PATIENCE)
        return status

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Stop it by SIGSTOP within a block."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill it, if it lives. Idempotent."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def _read(self, process: "subprocess.Popen[str]", is_listening: threading.Event) -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                self.log_lines.append(line)
                if "listening" in line:
                    is_listening.set()
        self.log_lines.append("it has ended\n")
        is_listening.set()


def find_free_port() -> int:
    """Return a port of loopback that nothing listens on."""
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((_HOST, port))
            return port
    raise AssertionError("a hundred ports are taken")
