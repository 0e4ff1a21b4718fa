"""Strangers at every port of a daemon and of ranks, with and without TLS.

ALLHANDS_STRANGERS is the number of connections to each port (by hand, 12,500 to 8 ports).
"""

import contextlib
import json
import os
import random
import resource
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from allhands.cli.tls_directories import create_directories
from allhands.coordinator.client import Control
from allhands.coordinator.endpoint import find_coordinator
from allhands.testing.poll import poll_until
from programs import strangers as programs
from support.ranks.processes import Cluster, Process

COUNT = int(os.environ.get("ALLHANDS_STRANGERS", "100"))
PATIENCE = 120.0
SLACK_DESCRIPTORS = 16
SLACK_BYTES = 96 << 20
RESET = struct.pack("ii", 1, 0)
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@dataclass(frozen=True)
class Besieged:
    """A daemon and two ranks, with all of their ports."""

    daemon: Process
    ranks: list[Process]
    ports: list[int]
    control: Control

    def works(self) -> None:
        """Check that keys and collectives go on."""
        assert self.control.add("rounds", 1) > 0
        for rank in self.ranks:
            rank.say("again")
        assert [rank.expect("summed")["sum"] for rank in self.ranks] == [2.0, 2.0]

    def measure(self) -> tuple[int, int]:
        """Return descriptors and resident bytes of all processes."""
        processes = [psutil.Process(one.child.pid) for one in (self.daemon, *self.ranks)]
        descriptors = sum(one.num_fds() for one in processes)
        return descriptors, sum(one.memory_info().rss for one in processes)


@pytest.fixture(params=["plaintext", "tls"])
def besieged(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path
) -> Iterator[Besieged]:
    serve: tuple[str, ...] = ()
    if request.param == "tls":
        create_directories(tmp_path / "tls", ["node7.example"], 1)
        serve = ("--tls-dir", str(tmp_path / "tls/daemon"))
    daemon = cluster.serve("--listen", "127.0.0.1:0", *serve)
    url = cluster.find_url(daemon)
    environment = {"ALLHANDS_URL": f"{url}/j", "ALLHANDS_BACKEND": "socket", "WORLD_SIZE": "2"}
    if request.param == "tls":
        environment |= {"ALLHANDS_TLS_DIR": str(tmp_path / "tls/worker")}
    else:
        [notice] = cluster.runtime.rglob("coordinator-*.json")
        environment |= {"ALLHANDS_TOKEN": json.loads(notice.read_text())["token"]}
    ranks = [cluster.start(programs.hold_ports, RANK=str(rank), **environment) for rank in range(2)]
    ports = [port for rank in ranks for port in rank.expect("listening")["ports"]]
    assert len(ports) == 4
    listening = psutil.Process(daemon.child.pid).net_connections("tcp")
    ports += [one.laddr.port for one in listening if one.status == psutil.CONN_LISTEN]
    assert len(ports) == 6
    with Control(find_coordinator(None, environment), job="j", timeout=PATIENCE) as control:
        made = Besieged(daemon, ranks, ports, control)
        made.works()
        yield made
        print("".join(daemon.errors))
        for rank in ranks:
            rank.say("end")
        assert [rank.ended() for rank in ranks] == [0, 0]


# ---------------------------------------------------------------- what strangers send


def make_garbage(chance: random.Random) -> bytes:
    """Return the beginning of some protocol, right or wrong, and random bytes."""
    noise = chance.randbytes(chance.choice((0, 1, 7, 64, 300, 2000)))
    length = chance.choice((0, 5, 4096, 1 << 20, (1 << 31) - 1, (1 << 32) - 1))
    begin = chance.choice(
        (
            b"",
            noise,
            b"GET / HTTP/1.1\r\n\r\n",
            HTTP2 + b"\0\0\0\4\0\0\0\0\0",
            HTTP2 + b"\xff\xff\xff\1\4\0\0\0\1",
            b"allhands-calls/1\n" + struct.pack(">I", length),
            b"AL\1\0" + struct.pack("<I", length),
            b"AL\1\1" + struct.pack("<I", length),
            b"AH\1\1" + struct.pack("<I", length),
            b"\x16\3\1" + struct.pack(">H", length & 0xFFFF),
            b"\x16\3\1\2\0\1\0\1\xfc\3\3",
            b"\x80\x04\x95",  # a pickle
        )
    )
    return begin + noise


def send_garbage(port: int, chance: random.Random) -> None:
    with socket.socket() as stranger:
        stranger.settimeout(PATIENCE)
        if chance.random() < 0.3:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        with contextlib.suppress(OSError):
            stranger.connect(("127.0.0.1", port))
            stranger.sendall(make_garbage(chance))


def reset(port: int, chance: random.Random) -> None:
    """Connect and reset, perhaps before the connection is accepted."""
    with socket.socket() as stranger:
        stranger.settimeout(PATIENCE)
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        with contextlib.suppress(OSError):
            stranger.connect(("127.0.0.1", port))


@pytest.mark.parametrize("attack", [send_garbage, reset])
def test_nothing_of_strangers_stays(
    besieged: Besieged, attack: Callable[[int, random.Random], None]
) -> None:
    descriptors, nbytes = besieged.measure()
    chance = random.Random(7)
    for number in range(COUNT):
        for port in besieged.ports:
            attack(port, chance)
        if number % 1000 == 999:
            besieged.works()
    besieged.works()
    poll_until(lambda: besieged.measure()[0] <= descriptors + SLACK_DESCRIPTORS, PATIENCE)
    after, grown = besieged.measure()
    print(f"descriptors {descriptors} -> {after}, resident {nbytes >> 20} -> {grown >> 20} MiB")
    assert grown - nbytes < SLACK_BYTES
    for one in (besieged.daemon, *besieged.ranks):
        assert "Traceback" not in "".join(one.errors)


def test_half_open_connections_keep_nobody_out(besieged: Besieged) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    descriptors, nbytes = besieged.measure()
    try:
        with contextlib.ExitStack() as held:
            for _ in range(min(COUNT, hard // 8)):
                for port in besieged.ports:
                    stranger = held.enter_context(socket.socket())
                    stranger.setblocking(False)
                    with contextlib.suppress(BlockingIOError):
                        stranger.connect(("127.0.0.1", port))
            besieged.works()
            _, grown = besieged.measure()
            assert grown - nbytes < SLACK_BYTES
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    poll_until(lambda: besieged.measure()[0] <= descriptors + SLACK_DESCRIPTORS, PATIENCE)
    besieged.works()
