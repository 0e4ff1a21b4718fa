"""Linux's state of a TCP connection: struct tcp_info, read at fixed offsets."""

import socket
import struct
import time

_BYTES = 104
_BACKOFF = 4
"""One byte: how often the timeout has been doubled, since nothing is acknowledged."""
_RETRANSMISSION_TIMEOUT = 8
"""Microseconds."""
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


def read_recovery_seconds(connection: socket.socket) -> float:
    """Return the seconds until a packet that gets lost is sent again and acknowledged.

    That is the retransmission timeout of RFC 6298, as if nothing were lost now, and a round trip.
    """
    info = _read_info(connection)
    timeout = _unpack_field(info, _RETRANSMISSION_TIMEOUT) >> info[_BACKOFF]
    return (timeout + _unpack_field(info, _ROUND_TRIP)) / 1e6


def _read_field(connection: socket.socket, offset: int) -> int:
    return _unpack_field(_read_info(connection), offset)


def _read_info(connection: socket.socket) -> bytes:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES)


def _unpack_field(info: bytes, offset: int) -> int:
    (value,) = struct.unpack_from("I", info, offset)
    return int(value)
