"""Latency and bandwidth of plain TCP between hosts: the bound for libraries over TCP.

As a program it is the side that answers: it prints its port, and serves one connection.
"""

import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

_PING_PONGS = 1000
_CHUNK = 1 << 20
_MIN_CHUNKS = 16
_MAX_STREAM_SECONDS = 0.3
_MAX_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class TcpFigures:
    round_trip_us: float
    """One byte there and back, both sides blocking."""
    gbs: float
    """One way, in GB/s."""


def measure(address: str, here: Sequence[str] = (), there: Sequence[str] = ()) -> TcpFigures:
    """Measure TCP between two processes; `here` and `there` are command prefixes."""
    program = (sys.executable, "-m", "allhands.bench.tcp")
    with subprocess.Popen([*there, *program, address], stdout=subprocess.PIPE, text=True) as echo:
        assert echo.stdout is not None
        port = echo.stdout.readline().strip()
        asked = subprocess.run(
            [*here, *program, address, port],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=_MAX_SECONDS,
        )
    round_trip, rate = map(float, asked.stdout.split())
    return TcpFigures(round_trip, rate)


def _serve(address: str) -> None:
    with socket.create_server((address, 0)) as server:
        sys.stdout.write(f"{server.getsockname()[1]}\n")
        sys.stdout.flush()
        server.settimeout(_MAX_SECONDS)
        connection = server.accept()[0]
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(_PING_PONGS):
            connection.sendall(connection.recv(1))
        room = bytearray(_CHUNK)
        got = 1
        while got:
            got = connection.recv_into(room)
        connection.sendall(b"x")  # the stream has ended, and all of it is here


def _run_client(address: str, port: int) -> None:
    with socket.create_connection((address, port), _MAX_SECONDS) as connection:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        round_trips = []
        for _ in range(_PING_PONGS):
            begun = time.perf_counter()
            connection.sendall(b"x")
            connection.recv(1)
            round_trips.append(time.perf_counter() - begun)
        chunk = bytes(_CHUNK)
        chunks = 0
        begun = time.perf_counter()
        while chunks < _MIN_CHUNKS or time.perf_counter() - begun < _MAX_STREAM_SECONDS:
            connection.sendall(chunk)
            chunks += 1
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        took = time.perf_counter() - begun
    middle = statistics.median(round_trips) * 1e6
    sys.stdout.write(f"{middle} {chunks * _CHUNK / took / 1e9}\n")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        _serve(sys.argv[1])
    else:
        _run_client(sys.argv[1], int(sys.argv[2]))
