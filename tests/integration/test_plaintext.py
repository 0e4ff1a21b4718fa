"""Plaintext beyond loopback: no entry point sends anything unless it was allowed to."""

import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from allhands.coordinator.client import connect
from allhands.coordinator.endpoint import parse_url
from support.ranks.addresses import address_beyond_loopback
from support.ranks.forking import PATIENCE
from support.ranks.processes import Cluster, Process


class Stranger:
    """A listener at an address that other hosts reach; it keeps who connects."""

    def __init__(self) -> None:
        self.host = address_beyond_loopback()
        self._socket = socket.create_server((self.host, 0))
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"ah://{self.host}:{self.port}/job"

    def was_called(self) -> bool:
        """Say whether anybody has connected: the kernel has noted it by the time they fail."""
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


ENTRIES = {
    "init": "ah.init_process_group(URL, rank=0, world_size=1, timeout=5)",
    "env": "ah.init_process_group(timeout=5)",
    "hosted": "ah.init_process_group(f'tcp://{HOST}:{PORT}', rank=1, world_size=2, timeout=5)",
    "connect": "ah.connect(URL).put('key', b'value', timeout=5)",
    "store": "ah.TCPStore(HOST, PORT, timeout=5)",
    "aio": """
        import asyncio
        from allhands import aio
        async def go():
            async with aio.connect(URL, rank=0, world_size=1, timeout=5):
                pass
        asyncio.run(go())
    """,
    "aio store": """
        import asyncio
        from allhands.coordinator.endpoint import Endpoint, parse_url
        from allhands.stores import AsyncCoordinatorStore
        async def go():
            async with AsyncCoordinatorStore(Endpoint(parse_url(URL), "s3cret"), job="j") as it:
                await it.num_keys()
        asyncio.run(go())
    """,
    "torch": """
        import torch.distributed as dist
        dist.init_process_group("allhands", init_method=URL, rank=0, world_size=1)
    """,
    "torchrun": """
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from allhands.torch.rendezvous.elastic import make_handler
        at = f"{HOST}:{PORT}"
        make_handler(RendezvousParameters("allhands", at, "run", 1, 2, is_host="false"))
    """,
    "torchrun url": """
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from allhands.torch.rendezvous.elastic import make_handler
        make_handler(RendezvousParameters("allhands", "", "run", 1, 2))
    """,
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_program_is_told_both_ways_before_a_byte_is_sent(
    cluster: Cluster, stranger: Stranger, entry: str
) -> None:
    if entry.startswith("torch"):
        pytest.importorskip("torch")
    process = cluster.start(
        f"HOST, PORT, URL = {stranger.host!r}, {stranger.port}, {stranger.url!r}\n"
        "def go():\n" + _indented(ENTRIES[entry]) + "\n"
        "tell('refused', **failure(go))",
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


def _indented(text: str) -> str:
    return textwrap.indent(textwrap.dedent(text), "    ")


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


def test_who_is_allowed_to_talks_in_plaintext_everywhere(cluster: Cluster, tmp_path: Path) -> None:
    host = address_beyond_loopback()
    child = cluster.fork_server.start(
        module="allhands.cli.main",
        arguments=["serve", "--listen", f"{host}:0", "--insecure"],
        environment={**cluster.environment, "ALLHANDS_TOKEN": "s3cret"},
    )
    cluster.started.append(Process(child))
    port = parse_url(cluster._url_of(child.pid)).port
    url = f"ah://{host}:{port}/job"
    allowed = cluster.start(
        """
        ah.init_process_group(os.environ["URL"], rank=0, world_size=1, insecure=True)
        ah.store().set("key", b"value")
        ah.destroy_process_group()
        with ah.connect(os.environ["URL"], insecure=True) as control:
            tell("done", value=control.get("key").decode())
        """,
        URL=url,
        ALLHANDS_TOKEN="s3cret",
    )
    assert allowed.expect("done")["value"] == "value"
    assert allowed.ended() == 0
    done = _ran(
        ["allhands.cli.main", "kv", "get", "job", "key"], ALLHANDS_URL=url, ALLHANDS_INSECURE="1"
    )
    assert done.stdout == "value"
    script = tmp_path / "rank.py"
    script.write_text(
        "import allhands as ah; ah.init_process_group(); ah.destroy_process_group(); print('ran')"
    )
    listed = (
        ["kv", "get", "job", "key", "--coordinator", url, "--insecure"],
        ["run", "-n", "1", "--coordinator", url, "--insecure", str(script)],
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
