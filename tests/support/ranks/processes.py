"""Coordinators and rank processes for tests of whole jobs; all real."""

import contextlib
import json
import os
import queue
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trustme

from support.ranks.forking import PATIENCE, Child, ForkServer
from support.ranks.output import OutputReader

Program = Callable[..., None]
"""A function of a module that the process can import, as those of `programs`."""
Job = Callable[..., list["Process"]]
"""Starts a program in each rank of a world: its size, the program, arguments, environment."""

BACKENDS = ("auto", "socket", "grpc")
"""What carries the calls of ranks of one host; the first is shared memory."""

GRPC = pytest.param("grpc", marks=pytest.mark.nightly)
"""For tests that wait for seconds, of what is the same over any links."""


@dataclass(eq=False)
class Process:
    """A child process that reports its events in lines of JSON."""

    child: Child
    lines: "queue.Queue[dict[str, Any] | None]" = field(default_factory=queue.Queue)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reader = OutputReader()
        self._reader.read(
            self.child.stdout,
            lambda line: self.lines.put(json.loads(line)),
            at_end=lambda: self.lines.put(None),
        )
        self._reader.read(self.child.stderr, self.errors.append)

    def expect(self, *what: str) -> dict[str, Any]:
        """Return the next event, which must have a given name."""
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
        self._reader.join(PATIENCE)
        return status

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # nobody is left
            os.killpg(self.child.pid, signal.SIGKILL)
        self.ended()
        for pipe in (self.child.stdin, self.child.stdout, self.child.stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def finish(ranks: list[Process]) -> list[dict[str, Any]]:
    """Return what every rank tells as "done", once all have ended without an error."""
    said = [rank.expect("done") for rank in ranks]
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)
    return said


@dataclass
class Cluster:
    """Processes of one test, in a private runtime directory."""

    runtime: Path
    fork_server: ForkServer
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

    def start(
        self, program: Program, *arguments: Any, holder: int | None = None, **environment: str
    ) -> Process:
        """Start a process that calls a program of `programs` with these arguments.

        They travel as JSON: lists, numbers, text. With a `holder` it runs on the host whose
        namespaces that process holds.
        """
        request = {"program": [program.__module__, program.__name__], "arguments": arguments}
        return self._start(request, holder, environment)

    def world(
        self,
        size: int,
        program: Program,
        *arguments: Any,
        holder: int | None = None,
        **environment: str,
    ) -> list[Process]:
        """Start a rank process for each rank of a world."""
        places = ({"RANK": str(rank), "WORLD_SIZE": str(size)} for rank in range(size))
        return [
            self.start(program, *arguments, holder=holder, **place, **environment)
            for place in places
        ]

    def daemon(self, *, encrypts: bool = False) -> str:
        """Start `allhands serve` on a free port; return its URL.

        Where it `encrypts`, so do the links of its jobs.
        """
        tls = self._make_certificate() if encrypts else ()
        return self.find_url(self.serve("--listen", "127.0.0.1:0", *tls))

    def _make_certificate(self) -> tuple[str, ...]:
        """Make a certificate for loopback; return the options of a daemon for it."""
        certificate, key = (str(self.runtime / name) for name in ("cert.pem", "key.pem"))
        issued = trustme.CA().issue_cert("127.0.0.1")
        for blob in issued.cert_chain_pems:
            blob.write_to_path(certificate, append=True)
        issued.private_key_pem.write_to_path(key)
        return "--tls-cert", certificate, "--tls-key", key

    def serve(self, *options: str, holder: int | None = None, **environment: str) -> Process:
        """Start `allhands serve` with these options; it says nothing on standard output."""
        request = {"module": "allhands.cli.main", "arguments": ["serve", *options]}
        return self._start(request, holder, environment)

    def find_url(self, daemon: Process) -> str:
        """Wait for the notice of a daemon; return the URL of loopback that it has."""
        return self._url_of(daemon.child.pid)

    def _start(
        self, request: dict[str, Any], holder: int | None, environment: dict[str, str]
    ) -> Process:
        child = self.fork_server.start(
            **request, holder=holder, environment={**self.environment, **environment}
        )
        process = Process(child)
        self.started.append(process)
        return process

    def _url_of(self, pid: int) -> str:
        """Wait for the notice of the daemon with that process id."""
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
