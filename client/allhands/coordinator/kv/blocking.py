"""Blocking client of the key-value port: calls over plain TCP, on the caller's own thread.

A pool of connections, with a single call under way on each: so a wait blocks no other call, and a
wait that ends early closes only its own connection. Without a free connection, or if the port is
unreachable, the caller uses gRPC.
"""

import contextlib
import logging
import select
import socket
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

import grpc
from google.protobuf.message import DecodeError

from allhands.coordinator.dialling import connect_to_any
from allhands.coordinator.endpoint import Endpoint, tls_context
from allhands.coordinator.kv.calls import (
    KvCallError,
    KvPort,
    answer_challenge,
    decode_reply,
    encode_call,
    list_kv_addresses,
    make_deadline_error,
)
from allhands.coordinator.kv.cancelling import CallCanceller
from allhands_proto import forks, framing
from allhands_proto.kv_handshake import CallerHandshake
from allhands_proto.kv_verbs import KvVerb, P, Q
from allhands_proto.v1 import coordinator_pb2 as wire

logger = logging.getLogger(__name__)

_MAX_CONNECTIONS = 32
"""Lines of one client; calls beyond that go by gRPC, which has room for any number."""
CONNECT_SECONDS = 2.0
"""A firewall that swallows what comes for the port costs this much, once."""
_FIRST_BYTES = 4096
_MORE_BYTES = 1 << 20

SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # A coordinator whose host vanished without a word: waits end in 20 s, whatever their deadline.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000),
)


class KvConnection:
    """A connection with at most one call at a time.

    All methods raise OSError once the connection is broken, and Malformed or DecodeError if the
    other side does not follow the protocol. After an error the connection is unusable.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    @property
    def is_usable(self) -> bool:
        """Whether no unexpected data has arrived, such as the end of the stream."""
        return not self._poll.poll(0)

    def authenticate(self, port: KvPort, deadline: float) -> None:
        """Authenticate both sides by the shared secret.

        Raises:
            PermissionError: the coordinator's proof is wrong.
            KvCallError: the coordinator rejects this side's proof.
        """
        handshake = CallerHandshake(port.secret, port.token_id)
        challenge = self._round_trip(handshake.start(), deadline)
        welcome = self._round_trip(answer_challenge(handshake, challenge), deadline)
        if (refused := handshake.finish(welcome)) is not None:
            raise KvCallError.from_refusal(refused)

    def call(
        self,
        verb: KvVerb[Q, P],
        request: Q,
        deadline: float,
        origin: wire.Origin | None = None,
    ) -> wire.Reply:
        """Make a call, and return the reply, which may be a refusal.

        Raises:
            TimeoutError: there was none at the deadline.
        """
        frame = framing.encode_frame(encode_call(verb, 1, request, _remaining(deadline), origin))
        body = self._round_trip(frame, deadline + verb.grace_seconds)
        return wire.Replies.FromString(body).replies[0]

    def shut_down(self) -> None:
        """Shut the connection down; calls waiting on it in any thread fail. Idempotent."""
        with contextlib.suppress(OSError):  # it is over already
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; only for the thread that owns the connection. Idempotent."""
        self._socket.close()

    def _round_trip(self, frame: bytes, deadline: float) -> bytes:
        """Write a frame, and return the body of the reply frame."""
        self._set_deadline(deadline)
        self._socket.sendall(frame)
        come = self._socket.recv(_FIRST_BYTES)
        while len(come) < framing.HEADER:
            if not come:
                raise ConnectionError("the coordinator closed the connection")
            self._set_deadline(deadline)
            come += self._receive(framing.HEADER - len(come))
        missing = framing.read_body_length(come, framing.LARGEST_FRAME) + framing.HEADER - len(come)
        if missing <= 0:
            return come[framing.HEADER :]
        parts = [come[framing.HEADER :]]
        while missing:
            self._set_deadline(deadline)
            parts.append(self._receive(missing))
            missing -= len(parts[-1])
        return b"".join(parts)

    def _receive(self, max_bytes: int) -> bytes:
        if not (come := self._socket.recv(min(max_bytes, _MORE_BYTES))):
            raise ConnectionError("the coordinator closed the connection")
        return come

    def _set_deadline(self, deadline: float) -> None:
        self._socket.settimeout(_remaining(deadline))


class KvConnectionPool:
    """The connections of a client, for any thread.

    `find_port` asks the coordinator for its key-value port, within so many seconds; None: it has
    none.
    """

    def __init__(self, endpoint: Endpoint, find_port: Callable[[float], KvPort | None]) -> None:
        self._endpoint = endpoint
        self._find_port = find_port
        self._port: KvPort | None = None
        self._is_kv_unavailable = False
        """No line is to be had, for good."""
        self._tls: ssl.SSLContext | None = None
        self._idle: deque[KvConnection] = deque()
        self._connections: set[KvConnection] = set()
        self._free_count = _MAX_CONNECTIONS
        self._lock = threading.Lock()
        self._closed = threading.Event()
        forks.hold(self)
        weakref.finalize(self, _close_all, self._connections).atexit = False

    def call(
        self,
        verb: KvVerb[Q, P],
        request: Q,
        deadline: float,
        canceller: CallCanceller | None = None,
        origin: wire.Origin | None = None,
    ) -> P | None:
        """Make a call; None: not made, for want of a connection.

        Raises:
            KvCallError: the coordinator refused, the connection broke, or the deadline passed.
            grpc.RpcError: the coordinator could not be asked for the port.
        """
        if (line := self._take_idle() or self._open_new(deadline)) is None:
            return None
        if self._port is not None and not self._port.takes(verb):
            self._idle.append(line)
            return None
        try:
            if canceller is None:
                reply = line.call(verb, request, deadline, origin)
            else:
                with canceller.hold(line.shut_down):
                    reply = line.call(verb, request, deadline, origin)
        except TimeoutError as error:
            self._drop(line)
            raise make_deadline_error() from error
        except (OSError, framing.MalformedFrame, DecodeError, IndexError) as error:
            self._drop(line)
            raise KvCallError(grpc.StatusCode.UNAVAILABLE, f"the line broke: {error}") from error
        except BaseException:  # Ctrl-C: what is under way on the line nobody will read
            self._drop(line)
            raise
        self._idle.append(line)
        if self._closed.is_set():
            self.close()  # the one under way may not have seen it
        return decode_reply(verb, reply)

    def note_restart(self) -> None:
        """Try the port again with the next call: the coordinator may be another process by now."""
        self._is_kv_unavailable = False

    def close(self) -> None:
        """Shut all connections down; waiting calls raise KvCallError. Idempotent."""
        with self._lock:
            self._closed.set()
            for line in self._connections:
                line.shut_down()
        with contextlib.suppress(IndexError):
            while True:
                self._drop(self._idle.pop())

    def forked(self) -> None:
        """Drop the parent's connections in a forked child.

        The coordinator could not distinguish parent and child on a shared connection.
        """
        for line in self._connections:
            line.close()  # which does not end it for the parent
        self._idle.clear()
        self._connections.clear()
        self._free_count = _MAX_CONNECTIONS
        # Another thread of the parent may have held their locks.
        self._lock = threading.Lock()
        is_closed, self._closed = self._closed.is_set(), threading.Event()
        if is_closed:
            self._closed.set()

    def _take_idle(self) -> KvConnection | None:
        while self._idle:
            try:
                line = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if line.is_usable:
                return line
            self._drop(line)
        return None

    def _open_new(self, deadline: float) -> KvConnection | None:
        with self._lock:
            if not self._free_count:
                return None
            self._free_count -= 1
        line = None
        try:
            line = self._try_open(deadline)
        finally:
            with self._lock:
                if line is None:
                    self._free_count += 1
                else:
                    self._connections.add(line)
        if line is not None and self._closed.is_set():
            line.shut_down()  # close() may not have seen it
        return line

    def _try_open(self, deadline: float) -> KvConnection | None:
        if self._closed.is_set():
            raise KvCallError(grpc.StatusCode.CANCELLED, "this client has been closed")
        if self._is_kv_unavailable:
            return None
        if (port := self._port) is not None:
            with contextlib.suppress(OSError, framing.MalformedFrame, DecodeError):
                return self._open_in_time(port, deadline)
            # There may be another coordinator in the place of that one.
        port = self._port = self._find_port(max(deadline - time.monotonic(), 0.0))
        if port is None:
            self._is_kv_unavailable = True
            return None
        try:
            return self._open_in_time(port, deadline)
        except (OSError, framing.MalformedFrame, DecodeError) as error:
            logger.info(
                "no line to port %d of the coordinator at %s (%s): its key-value calls go by gRPC",
                port.port,
                self._endpoint.address.target,
                error,
            )
            self._is_kv_unavailable = True
            return None

    def _open_in_time(self, port: KvPort, deadline: float) -> KvConnection:
        """Connect.

        Raises:
            OSError, framing.Malformed, DecodeError: it cannot be done.
            CallFailed: it is refused, or the caller's time is over.
        """
        limit = min(deadline, time.monotonic() + CONNECT_SECONDS)
        try:
            return self._connect(port, limit)
        except TimeoutError as error:
            if limit == deadline:
                raise make_deadline_error() from error
            raise

    def _connect(self, port: KvPort, deadline: float) -> KvConnection:
        addresses = list_kv_addresses(self._endpoint, port)
        connected, host = connect_to_any(addresses, _remaining(deadline))
        try:
            for level, option, value in SOCKET_OPTIONS:
                connected.setsockopt(level, option, value)
            if self._endpoint.tls_ca is not None:
                if self._tls is None:
                    self._tls = tls_context(self._endpoint)
                connected.settimeout(_remaining(deadline))
                connected = self._tls.wrap_socket(
                    connected, server_hostname=self._endpoint.tls_name or host
                )
            line = KvConnection(connected)
            line.authenticate(port, deadline)
        except BaseException:
            connected.close()
            raise
        return line

    def _drop(self, connection: KvConnection) -> None:
        with self._lock:
            if connection in self._connections:
                self._connections.remove(connection)
                self._free_count += 1
        connection.close()


def _close_all(connections: set[KvConnection]) -> None:
    for line in connections:
        line.close()


def _remaining(deadline: float) -> float:
    """Return the seconds until the deadline, always some.

    Raises:
        TimeoutError: it has passed.
    """
    if (remaining := deadline - time.monotonic()) <= 0:
        raise TimeoutError("the time is over")
    return remaining
