"""Key-value servers for the store's benchmark: each a process on loopback, with a CPU time."""

import contextlib
import functools
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from allhands_proto import notice

T = TypeVar("T")

_START_SECONDS = 30.0
_POLL_SECONDS = 0.02
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class StoreServer:
    """A server that listens on 127.0.0.1."""

    pid: int
    port: int
    token: str = ""

    def read_cpu_seconds(self) -> float:
        """Return how long its threads have computed, as fine as the kernel's ticks."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


def find_missing(system: str) -> str | None:
    """Return the requirement missing on this machine; None: complete."""
    if system == "tcpstore" and importlib.util.find_spec("torch") is None:
        return "pip install torch"
    if system == "etcd" and shutil.which("etcd") is None:
        return "the program etcd on PATH (Debian: etcd-server)"
    return None


@contextmanager
def run_allhands(*, is_durable: bool = False) -> Iterator[StoreServer]:
    """Run `allhands serve`; if durable, with a log on the disk of temporary files."""
    with tempfile.TemporaryDirectory(prefix="allhands-bench-") as runtime:
        command = [sys.executable, "-m", "allhands.cli.main", "serve", "--listen", "127.0.0.1:0"]
        if is_durable:
            command += ["--data-dir", str(Path(runtime) / "log")]
        with _run_server(command, {"XDG_RUNTIME_DIR": runtime}) as process:
            posted = _poll(lambda: _read_notice(Path(runtime)), process)
            yield StoreServer(process.pid, posted.port, posted.token)


@contextmanager
def run_tcpstore() -> Iterator[StoreServer]:
    """Run the C++ server of torch's TCPStore in a process that does nothing else."""
    script = (
        "import sys; from torch.distributed import TCPStore;"
        "store = TCPStore('127.0.0.1', 0, None, True, wait_for_workers=False);"
        "sys.stdout.write(f'{store.port}\\n'); sys.stdout.flush(); sys.stdin.read()"
    )
    with _run_server([sys.executable, "-c", script], {}) as process:
        assert process.stdout is not None
        yield StoreServer(process.pid, int(process.stdout.readline()))


@contextmanager
def run_etcd() -> Iterator[StoreServer]:
    """Run a one-member etcd cluster on a disk, with default settings."""
    port, peers = _find_free_port(), _find_free_port()
    here, others = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
    with tempfile.TemporaryDirectory(prefix="allhands-bench-") as folder:
        command = ["etcd", "--data-dir", folder, "--log-level", "error", "--logger", "zap"]
        command += ["--listen-client-urls", here, "--advertise-client-urls", here]
        command += ["--listen-peer-urls", others, "--initial-advertise-peer-urls", others]
        command += ["--initial-cluster", f"default={others}"]
        with _run_server(command, {}) as process:
            _poll(lambda: _is_listening(port), process)
            yield StoreServer(process.pid, port)


SERVERS: dict[str, Callable[[], AbstractContextManager[StoreServer]]] = {
    "allhands": run_allhands,
    "allhands, durable": functools.partial(run_allhands, is_durable=True),
    "tcpstore": run_tcpstore,
    "etcd": run_etcd,
}


@contextmanager
def _run_server(command: list[str], more: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ALLHANDS_")}
    with subprocess.Popen(
        command,
        env={**kept, **more},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def _poll(read: Callable[[], T | None], process: "subprocess.Popen[str]") -> T:
    deadline = time.monotonic() + _START_SECONDS
    while (found := read()) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{process.args!r} does not listen")
        time.sleep(_POLL_SECONDS)  # nothing tells of it
    return found


def _read_notice(runtime: Path) -> notice.Notice | None:
    for path in runtime.glob("allhands/coordinator-*.json"):
        return notice.Notice(**json.loads(path.read_text()))
    return None


def _is_listening(port: int) -> bool | None:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return None


def _find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
