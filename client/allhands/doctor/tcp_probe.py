"""Connections between two hosts: reachability, time, bandwidth and path MTU.

The measured host listens on its announced address, on a port of its range, and answers only callers
that know the nonce which it left at the coordinator.
"""

import contextlib
import errno
import hmac
import secrets
import socket
import statistics
import struct
import threading
import time
from collections.abc import Sequence
from typing import Self

from allhands.doctor.pairs import Failure, TcpResult

NONCE_BYTES = 16
CONNECT_SECONDS = 3.0
_ANSWER_SECONDS = 5.0
_IDLE_SECONDS = 30.0
_ROUND_TRIPS = 20
_BURSTS = (1 << 20, 8 << 20, 64 << 20)
"""Bytes sent one after the other, as long as they take less than `_ENOUGH_SECONDS`."""
_ENOUGH_SECONDS = 0.2
_CHUNK = 1 << 18
_LENGTH = struct.Struct("!Q")
_CLOSED = "the other side has closed it"
_IP_MTU, _IPV6_MTU = 14, 24
"""Of linux/in.h and linux/in6.h; `socket` does not name them."""


class ProbeListener:
    """Answers probes of other hosts until closed."""

    def __init__(self, address: str, ports: Sequence[int] | None) -> None:
        """Listen on an address of this host, or on all where it is translated on the way here.

        Raises:
            OSError: none of the ports is free; None: any.
        """
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self._socket = _listen(address, ports)
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="allhands-doctor", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # which ends `accept`
        self._socket.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connected, _ = self._socket.accept()
            except OSError:
                return
            # One at a time: hosts are measured one by one, and a stranger is soon gone.
            with connected, contextlib.suppress(OSError):
                self._answer(connected)

    def _answer(self, connected: socket.socket) -> None:
        connected.settimeout(_ANSWER_SECONDS)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = memoryview(bytearray(_CHUNK))
        if not hmac.compare_digest(_receive(connected, buffer[:NONCE_BYTES]), self.nonce):
            return
        connected.settimeout(_IDLE_SECONDS)
        while True:
            header = _receive(connected, buffer[: _LENGTH.size])
            (left,) = _LENGTH.unpack(header)
            while left:
                left -= len(_receive(connected, buffer[: min(left, _CHUNK)]))
            connected.sendall(header)


def probe(address: str, port: int, nonce: bytes) -> TcpResult:
    """Connect to a listener, and measure the way there; takes some seconds at most."""
    try:
        connected = socket.create_connection((address, port), CONNECT_SECONDS)
    except OSError as error:
        failure, problem = _explain(error)
        return TcpResult(port, failure, problem)
    with connected:
        return _measure(connected, port, nonce)


def _measure(connected: socket.socket, port: int, nonce: bytes) -> TcpResult:
    connected.settimeout(_ANSWER_SECONDS)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        connected.sendall(nonce)
        times = [_exchange(connected, 1) for _ in range(_ROUND_TRIPS)]
    except (BrokenPipeError, ConnectionResetError):
        return TcpResult(port, "other", f"it connects, then: {_CLOSED}")
    except OSError as error:
        problem = error.strerror or str(error) or "no answer"
        return TcpResult(port, "other", f"it connects, then: {problem}")
    round_trip, bandwidth = statistics.median(times), 0.0
    for nbytes in _BURSTS:
        try:
            seconds = _exchange(connected, nbytes)
        except TimeoutError:
            mtu = _read_path_mtu(connected)
            problem = f"small packets pass, and large ones are lost (path MTU here: {mtu})"
            return TcpResult(port, "large", problem, round_trip, 0.0, mtu)
        except OSError as error:
            return TcpResult(port, "other", f"it breaks under load: {error.strerror}", round_trip)
        bandwidth = nbytes / seconds
        if seconds > _ENOUGH_SECONDS:
            break
    return TcpResult(port, None, "", round_trip, bandwidth, _read_path_mtu(connected))


def _exchange(connected: socket.socket, nbytes: int) -> float:
    """Send so many bytes; return the seconds until the other host has told their number.

    Raises:
        TimeoutError: no more of them went out, or no answer came, for some seconds.
    """
    started = time.perf_counter()
    connected.sendall(_LENGTH.pack(nbytes))
    chunk = memoryview(bytes(min(nbytes, _CHUNK)))
    left = nbytes
    while left:
        left -= connected.send(chunk[: min(left, len(chunk))])
    _receive(connected, memoryview(bytearray(_LENGTH.size)))
    return time.perf_counter() - started


def _receive(connected: socket.socket, into: memoryview) -> memoryview:
    """Fill a buffer, and return it.

    Raises:
        ConnectionError: the other side has ended the connection.
    """
    filled = 0
    while filled < len(into):
        count = connected.recv_into(into[filled:])
        if not count:
            raise ConnectionResetError(errno.ECONNRESET, _CLOSED)
        filled += count
    return into


def _read_path_mtu(connected: socket.socket) -> int:
    is_v6 = connected.family == socket.AF_INET6
    level, option = (socket.IPPROTO_IPV6, _IPV6_MTU) if is_v6 else (socket.IPPROTO_IP, _IP_MTU)
    try:
        return connected.getsockopt(level, option)
    except OSError:  # it has been closed
        return 0


def _explain(error: OSError) -> tuple[Failure, str]:
    if isinstance(error, TimeoutError):
        return "silent", f"no answer within {CONNECT_SECONDS:g} s"
    said = error.strerror or str(error)
    match error.errno:
        case errno.ECONNREFUSED:
            return "refused", said
        case errno.ENETUNREACH | errno.EHOSTUNREACH | errno.EACCES | errno.EPERM:
            return "unreachable", said
        case _:
            return "other", said


def _listen(address: str, ports: Sequence[int] | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    host = address
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        try:
            trial.bind((address, 0))
        except OSError:
            host = "::" if family is socket.AF_INET6 else "0.0.0.0"
    for port in [0] if ports is None else ports:
        with contextlib.suppress(OSError):
            return socket.create_server((host, port), family=family)
    raise OSError(errno.EADDRINUSE, f"no port of the range is free at {host}")
