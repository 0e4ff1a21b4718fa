"""Plaintext beyond loopback: no entry point sends a byte unless allowed."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from allhands.coordinator.client import connect
from allhands.coordinator.endpoint import parse_url
from programs import joins, launched_ranks
from support.ranks.addresses import address_beyond_loopback
from support.ranks.forking import PATIENCE
from support.ranks.launchers import as_script
from support.ranks.processes import Cluster


class Stranger:
    """A listener at an address reachable from outside this host; records connections."""

    def __init__(self) -> None:
        self.host = address_beyond_loopback()
        self._socket = socket.create_server((self.host, 0))
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"ah://{self.host}:{self.port}/job"

    def was_called(self) -> bool:
        """Return whether a connection was made; the kernel knows by the time of failure."""
        try:
            self._socket.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    made = Stranger()
    yield made
    made.close()


ENTRIES = ("init", "env", "hosted", "connect", "store", "aio", "aio store")
ENTRIES += ("torch", "torchrun", "torchrun url")


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_program_is_told_both_ways_before_a_byte_is_sent(
    cluster: Cluster, stranger: Stranger, entry: str
) -> None:
    if entry.startswith("torch"):
        pytest.importorskip("torch")
    process = cluster.start(
        joins.be_refused,
        entry,
        stranger.host,
        stranger.port,
        ALLHANDS_TOKEN="s3cret",
        **({"ALLHANDS_URL": stranger.url} if entry in ("env", "torchrun url") else {}),
    )
    told = process.expect("refused")
    assert told["error"] == "ValueError", told
    assert "ALLHANDS_TLS_CA" in told["text"]
    assert "ALLHANDS_INSECURE=1" in told["text"]
    assert "s3cret" not in told["text"]
    assert not stranger.was_called()
    assert process.ended() == 0


COMMANDS = {
    "status": ["status"],
    "kv": ["kv", "get", "job", "key"],
    "abort": ["abort", "job"],
    "delete": ["delete", "job"],
    "group": ["group", "world"],
    "diagnose": ["diagnose", "job"],
    "trace": ["trace", "job"],
    "run": ["run", "-n", "1", "-m", "this"],
}


def _ran(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        env={**os.environ, "ALLHANDS_TOKEN": "s3cret", "COLUMNS": "1000", **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_told_both_ways_before_a_byte_is_sent(
    stranger: Stranger, command: str
) -> None:
    done = _ran(["allhands.cli.main", *COMMANDS[command]], ALLHANDS_URL=stranger.url)
    assert done.returncode == 2, done
    assert "ALLHANDS_TLS_CA" in done.stderr
    assert "--insecure" in done.stderr
    assert not stranger.was_called()


def test_the_health_check_asks_no_other_host_in_plaintext(stranger: Stranger) -> None:
    where = f"{stranger.host}:{stranger.port}"
    done = _ran(["allhands_server.healthcheck", where])
    assert done.returncode == 1
    assert "--tls-ca" in done.stderr
    assert "--insecure" in done.stderr
    assert not stranger.was_called()


def test_who_is_allowed_to_talks_in_plaintext_everywhere(cluster: Cluster) -> None:
    host = address_beyond_loopback()
    daemon = cluster.serve("--listen", f"{host}:0", "--insecure", ALLHANDS_TOKEN="s3cret")
    port = parse_url(cluster.find_url(daemon)).port
    url = f"ah://{host}:{port}/job"
    allowed = cluster.start(
        joins.talk_in_plaintext,
        url,
        ALLHANDS_TOKEN="s3cret",
    )
    assert allowed.expect("done")["value"] == "value"
    assert allowed.ended() == 0
    done = _ran(
        ["allhands.cli.main", "kv", "get", "job", "key"], ALLHANDS_URL=url, ALLHANDS_INSECURE="1"
    )
    assert done.stdout == "value"
    script = as_script(launched_ranks.join_and_leave)
    listed = (
        ["kv", "get", "job", "key", "--coordinator", url, "--insecure"],
        ["run", "-n", "1", "--coordinator", url, "--insecure", *script],
    )
    for arguments in listed:
        done = _ran(["allhands.cli.main", *arguments])
        assert done.returncode == 0, done.stderr
    # Found by its notice, it is this host's own.
    done = _ran(["allhands.cli.main", "status"], XDG_RUNTIME_DIR=str(cluster.runtime))
    assert done.returncode == 0, done.stderr
    assert _ran(["allhands_server.healthcheck", f"{host}:{port}", "--insecure"]).returncode == 0


def test_a_connection_made_in_python_is_refused_when_it_is_made(stranger: Stranger) -> None:
    with pytest.raises(ValueError, match="insecure=True"):
        connect(stranger.url, token="s3cret")
