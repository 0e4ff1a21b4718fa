"""Real etcd nodes on loopback, for tests: started, killed, paused."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.ranks.addresses import find_free_ports

ENDPOINTS_VARIABLE = "ALLHANDS_TEST_ETCD"
"""Endpoints, separated by commas, of a cluster for tests that need a real one."""
_START_SECONDS = 60.0


def is_installed() -> bool:
    """Return whether there is an etcd to start."""
    return shutil.which("etcd") is not None


@dataclass(frozen=True)
class EtcdTls:
    """Files of a certificate that a cluster shows, and wants of its clients too."""

    ca: str
    cert: str
    key: str


class EtcdNode:
    """One member of a cluster: a process with its folder, which can be started again."""

    def __init__(
        self, name: str, folder: Path, client_port: int, peer_port: int, tls: "EtcdTls | None"
    ) -> None:
        self.name = name
        self.endpoint = f"127.0.0.1:{client_port}"
        self._tls = tls
        self.peer_url = f"http://127.0.0.1:{peer_port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, members: str) -> None:
        url = f"{'http' if self._tls is None else 'https'}://{self.endpoint}"
        command = [
            *("etcd", "--name", self.name, "--data-dir", str(self._folder / self.name)),
            *("--listen-client-urls", url, "--advertise-client-urls", url),
            *("--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url),
            *("--initial-cluster", members, "--initial-cluster-token", str(self._folder)),
            *("--logger", "zap", "--log-level", "error"),
        ]
        if self._tls is not None:
            command += ["--cert-file", self._tls.cert, "--key-file", self._tls.key]
            command += ["--trusted-ca-file", self._tls.ca, "--client-cert-auth"]
        with open(self._folder / f"{self.name}.log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=30)
            self._process = None

    def read_status(self) -> dict[str, object]:
        """Return what it says of the cluster.

        Raises:
            OSError: it does not answer.
        """
        return self.call("maintenance/status", {})

    def call(self, method: str, request: dict[str, object], token: str = "") -> dict[str, object]:
        """Call a method of the API as JSON, without TLS; return the answer.

        Raises:
            OSError: it does not answer, or refuses.
        """
        url = f"http://{self.endpoint}/v3/{method}"
        headers = {"Authorization": token} if token else {}
        sent = urllib.request.Request(url, data=json.dumps(request).encode(), headers=headers)
        with urllib.request.urlopen(sent, timeout=5) as response:
            found: dict[str, object] = json.load(response)
        return found


class EtcdNodes:
    """A cluster of nodes."""

    def __init__(self, folder: Path, count: int = 3, tls: EtcdTls | None = None) -> None:
        ports = find_free_ports(2 * count)
        self.nodes = [
            EtcdNode(f"n{number}", folder, ports[2 * number], ports[2 * number + 1], tls)
            for number in range(count)
        ]
        self._tls = tls
        self._members = ",".join(f"{one.name}={one.peer_url}" for one in self.nodes)

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(one.endpoint for one in self.nodes)

    @property
    def url(self) -> str:
        return f"etcd://{','.join(self.endpoints)}"

    def start(self) -> None:
        """Start all nodes; without TLS, wait until they have a leader."""
        for one in self.nodes:
            one.start(self._members)
        if self._tls is None:
            self.find_leader()

    def restart(self, node: EtcdNode) -> None:
        node.start(self._members)

    def find_leader(self) -> EtcdNode:
        """Return the node that leads, once there is one that a majority knows."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            told: list[str] = []
            ids: dict[str, EtcdNode] = {}
            for one in self.nodes:
                with contextlib.suppress(OSError, ValueError):
                    status = one.read_status()
                    header = status["header"]
                    assert isinstance(header, dict)
                    ids[header["member_id"]] = one
                    told.append(str(status.get("leader", "0")))
            for leader in set(told) - {"0"}:
                if told.count(leader) > len(self.nodes) // 2 and leader in ids:
                    return ids[leader]
            time.sleep(0.1)  # nothing tells of an election
        raise TimeoutError(f"no leader of {self.endpoints} within {_START_SECONDS:g} s")

    def close(self) -> None:
        for one in self.nodes:
            one.kill()


@contextlib.contextmanager
def run_nodes(folder: Path, count: int = 3, tls: EtcdTls | None = None) -> Iterator[EtcdNodes]:
    """Run so many nodes in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    nodes = EtcdNodes(folder, count, tls)
    try:
        nodes.start()
        yield nodes
    finally:
        nodes.close()


def main() -> None:
    """Run a command with three nodes, whose endpoints are in its environment."""
    import sys
    import tempfile

    with (
        tempfile.TemporaryDirectory(prefix="allhands-etcd-") as folder,
        run_nodes(Path(folder)) as nodes,
    ):
        environ = {**os.environ, ENDPOINTS_VARIABLE: ",".join(nodes.endpoints)}
        sys.exit(subprocess.run(sys.argv[1:], env=environ).returncode)


if __name__ == "__main__":
    main()
