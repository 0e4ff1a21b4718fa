"""Processes of one system: start, commands, end."""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from allhands.bench.ipc import JsonConnection, Message
from allhands.bench.launchers import RANK_MODULE, THIS_HOST, BenchHost, Launcher, ProcessSpec
from allhands.bench.start_gate import StartGate
from allhands.bench.systems import ENCRYPTED

_START_SECONDS = 90.0
_TRIAL_SECONDS = 180.0
_END_SECONDS = 5.0
_MAX_LOG_LINES = 12


class RankPoolFailed(Exception):
    """A system's processes failed; the text has their output."""


class RankPool:
    """The ranks of one system; asleep between requests."""

    def __init__(
        self,
        launcher: Launcher,
        ranks: int,
        folder: Path,
        hosts: Sequence[BenchHost] = (THIS_HOST,),
        module: str = RANK_MODULE,
    ) -> None:
        """Start the ranks and wait until all have joined their world; `folder` must be empty.

        Each runs `module`, and says so to the driver once it has joined.

        Raises:
            RankPoolFailed: they did not.
        """
        self.name = launcher.system
        self.size = ranks
        self.about: dict[str, str] = {}
        self._log = folder / "output"
        self._children: list[subprocess.Popen[bytes]] = []
        self._connections: list[JsonConnection] = []
        self._files = contextlib.ExitStack()
        gate = folder / "gate"
        gate.write_bytes(bytes(StartGate.count_bytes(ranks)))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "driver"))
            listener.listen(ranks)
            arguments = ["--driver", str(folder / "driver"), "--gate", str(gate)]
            arguments += ["--meeting", str(folder / "meeting")]
            try:
                secured = self._open_certificates() if self.name == ENCRYPTED else {}
                self._start(
                    launcher.list_processes(hosts, ranks, arguments, _find_free_port(), module),
                    secured,
                )
                self._accept_ranks(listener)
            except BaseException:
                self.close()
                raise

    def request(self, command: Message) -> list[dict[str, Any]]:
        """Send a command to every rank; return the answers, by rank.

        Raises:
            RankPoolFailed: a rank ended, or takes too long.
        """
        deadline = time.monotonic() + _TRIAL_SECONDS
        try:
            for line in self._connections:
                line.send(command)
            answers = [line.receive(deadline - time.monotonic()) for line in self._connections]
        except (TimeoutError, OSError) as error:
            raise self._make_failure(f"did not obey {command['do']}: {error}") from error
        present = [answer for answer in answers if answer is not None]
        if len(present) < len(answers):
            raise self._make_failure(f"a rank ended in {command['do']}")
        return present

    def leave(self) -> None:
        """Let the ranks leave their world, then end the processes."""
        try:
            self.request({"do": "leave"})
            self.wait_ended(_END_SECONDS)
        finally:
            self.close()

    def wait_ended(self, seconds: float) -> bool:
        """Wait until all processes have ended by themselves; return whether they have."""
        deadline = time.monotonic() + seconds
        try:
            for child in self._children:
                child.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """End every process; idempotent."""
        for line in self._connections:
            line.close()
        self._connections = []
        for child in self._children:
            _end(child)
        self._children = []
        self._files.close()

    def _open_certificates(self) -> dict[str, str]:
        """Make an authority and a certificate; return the settings by which ranks use TLS."""
        from allhands.launcher.throwaway_tls import NAME, open_throwaway_tls

        tls = self._files.enter_context(open_throwaway_tls())
        return {
            "ALLHANDS_INSECURE": "0",
            "ALLHANDS_TLS_CA": tls.authority,
            "ALLHANDS_TLS_CERT": tls.certificate,
            "ALLHANDS_TLS_KEY": tls.key,
            "ALLHANDS_TLS_NAME": NAME,
        }

    def _start(self, processes: Sequence[ProcessSpec], settings: Mapping[str, str]) -> None:
        with self._log.open("wb") as log:
            for process in processes:
                self._children.append(
                    subprocess.Popen(
                        process.command,
                        env={**process.environment, **settings},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )

    def _accept_ranks(self, listener: socket.socket) -> None:
        deadline = time.monotonic() + _START_SECONDS
        by_rank: dict[int, JsonConnection] = {}
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            while len(self._connections) < self.size:
                if selector.select(0.2):
                    self._connections.append(JsonConnection(listener.accept()[0]))
                elif any(child.poll() not in (None, 0) for child in self._children):
                    raise self._make_failure("a process ended before it joined")
                elif time.monotonic() > deadline:
                    raise self._make_failure(
                        f"only {len(self._connections)} of {self.size} ranks started"
                    )
        for line in self._connections:
            try:
                hello = line.receive(deadline - time.monotonic())
            except TimeoutError as error:
                raise self._make_failure("not all ranks joined their world") from error
            if hello is None:
                raise self._make_failure("a rank ended before it joined")
            if hello["size"] != self.size:
                raise self._make_failure(
                    f"its ranks see a world of {hello['size']}, not {self.size}: its launcher and "
                    "its library are not of the same kind"
                )
            by_rank[hello["rank"]] = line
            self.about = hello["about"]
        self._connections = [by_rank[rank] for rank in range(self.size)]

    def _make_failure(self, what: str) -> RankPoolFailed:
        printed = self._log.read_text(errors="replace").splitlines()[-_MAX_LOG_LINES:]
        return RankPoolFailed("\n    ".join([f"{self.name}, {self.size} ranks: {what}", *printed]))


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End a process and its children; launchers of MPI end their ranks on SIGTERM."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, kind)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_END_SECONDS)


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
