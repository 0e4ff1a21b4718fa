"""Linux's state of a TCP connection: struct tcp_info, read at fixed offsets."""

import socket
import struct
import time

_BYTES = 104
_LAST_DATA_RECEIVED = 52
"""Milliseconds ago."""
_LAST_ACK_RECEIVED = 56
"""Milliseconds ago."""
_ROUND_TRIP = 68
"""Smoothed, in microseconds."""


def read_last_receive_time(connection: socket.socket) -> float:
    """Return when data last came, on the monotonic clock; at first, when it was connected."""
    return time.monotonic() - _read_field(connection, _LAST_DATA_RECEIVED) / 1000


def read_last_ack_time(connection: socket.socket) -> float:
    """Return the time of the peer system's last TCP acknowledgement (monotonic clock, s)."""
    return time.monotonic() - _read_field(connection, _LAST_ACK_RECEIVED) / 1000


def read_round_trip(connection: socket.socket) -> int:
    """Return the smoothed round trip in microseconds; 0: unknown."""
    return _read_field(connection, _ROUND_TRIP)


def _read_field(connection: socket.socket, offset: int) -> int:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES)
    (value,) = struct.unpack_from("I", info, offset)
    return int(value)
