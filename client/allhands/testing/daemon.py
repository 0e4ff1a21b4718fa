"""A coordinator as a child process (`allhands serve`), for tests."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from allhands.coordinator.endpoint import Address, Endpoint
from allhands_proto.notice import Notice
from allhands_proto.quick_dataclass import dataclass

_ALLHANDS = (sys.executable, "-m", "allhands.cli.main")
_DRAIN_SECONDS = 5.0
_END_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class DaemonProcess:
    """A coordinator on a free port of loopback, with a runtime directory of its own."""

    process: subprocess.Popen[str]
    notice: Notice
    environ: dict[str, str]
    """For commands that are to find it as a user's own do."""
    log_lines: list[str]
    """The lines of its log so far."""

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(
            Address(self.notice.host, self.notice.port),
            self.notice.token,
            self.notice.tls_ca or None,
            tls_name=self.notice.tls_name or None,
            tls_cert=self.notice.tls_cert or None,
            tls_key=self.notice.tls_key or None,
        )

    def run_command(
        self, *arguments: str, stdin: str = "", timeout: float = 30.0
    ) -> subprocess.CompletedProcess[str]:
        """Run `allhands ARGUMENTS` against the daemon and return the completed process."""
        return subprocess.run(
            [*_ALLHANDS, *arguments],
            env=self.environ,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start_command(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `allhands ARGUMENTS` against the daemon, output in a pipe; the caller ends it."""
        return subprocess.Popen(
            [*_ALLHANDS, *arguments], env=self.environ, stdout=subprocess.PIPE, text=True
        )


@contextmanager
def run_daemon(runtime: Path, *arguments: str) -> Iterator[DaemonProcess]:
    """Run `allhands serve --listen 127.0.0.1:0 ARGUMENTS` within a block.

    `runtime` is an empty directory that takes the place of the user's runtime directory.

    Raises:
        RuntimeError: the process ended before it listened; the text is its output.
        subprocess.TimeoutExpired: it did not end on SIGTERM, and was killed.
    """
    environ = {key: value for key, value in os.environ.items() if not key.startswith("ALLHANDS_")}
    environ["XDG_RUNTIME_DIR"] = str(runtime)
    environ["XDG_CONFIG_HOME"] = str(runtime / "config")  # without contexts of the user's
    serve = ("serve", "--listen", "127.0.0.1:0", "--drain-timeout", str(_DRAIN_SECONDS))
    with subprocess.Popen(
        [*_ALLHANDS, *serve, *arguments],
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            said = _read_until_listening(process.stderr)
            # Else the pipe would fill up, and the daemon wait for ever in writing its log.
            reader = threading.Thread(target=said.extend, args=(process.stderr,), daemon=True)
            reader.start()
            yield DaemonProcess(process, _read_notice(runtime), environ, said)
        finally:
            process.terminate()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        reader.join()


def _read_until_listening(log: IO[str]) -> list[str]:
    said: list[str] = []
    for line in log:
        said.append(line)
        if "listening" in line:
            return said
    raise RuntimeError("the daemon ended before it listened:\n" + "".join(said))


def _read_notice(runtime: Path) -> Notice:
    [path] = (runtime / "allhands").glob("coordinator-*.json")
    return Notice(**json.loads(path.read_text()))
