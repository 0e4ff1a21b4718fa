"""Listener of the key-value port, with a bound on unauthenticated connections."""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable

from allhands_proto.limited_log import LimitedLog
from allhands_proto.unproven import GRACE_SECONDS, UnprovenConnections, limit_to_share
from allhands_server.access import Access
from allhands_server.coordinator import Coordinator
from allhands_server.kv.client_load import LogLoad
from allhands_server.kv.connection import KvConnection
from allhands_server.kv.receive_load import ReceiveLoad
from allhands_server.kv.sockets import listen_on
from allhands_server.kv.turns import Turns

logger = logging.getLogger(__name__)

_BACKLOG = 1024
_ACCEPTED_PER_TURN = 64
_ACCEPT_AGAIN_SECONDS = 0.5
_PART = 8
"""One of so many descriptors of this process may be a connection without a proof."""
_MAPPED = "::ffff:"
"""How a socket of IPv6 begins the address of a caller by IPv4."""
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # A host that vanished without a FIN: its lines end, and with them its waits.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
)


class KvListener:
    """Listener of the key-value port, with all connections; on the coordinator's loop.

    Accepts connections without asyncio's server, which differs between loops on reset connections
    and exhausted descriptors, and does not bound unauthenticated connections.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        secret: bytes,
        hello_timeout: float,
        access: Access | None = None,
    ) -> None:
        self.coordinator = coordinator
        self.access = access or Access(coordinator)
        self.hello_timeout = hello_timeout
        self.secret = secret
        self.turns = Turns()
        self.log_load = LogLoad(coordinator.limits)
        self.receive_load = ReceiveLoad(coordinator.limits)
        self.port = 0
        self._connections: set[KvConnection] = set()
        self._unproven: UnprovenConnections[KvConnection] = UnprovenConnections(
            limit_to_share(_PART)
        )
        self._opening: set[asyncio.Task[None]] = set()
        self._listening: list[socket.socket] = []
        self._get_tls: Callable[[], ssl.SSLContext] | None = None
        self._again: asyncio.TimerHandle | None = None
        self._is_full = False
        """Whether connections wait because too many others have shown no proof."""
        self._loop = asyncio.get_running_loop()
        self._log = LimitedLog(logger, "refused lines")

    def listen(
        self,
        hosts: tuple[str, ...],
        get_tls: Callable[[], ssl.SSLContext] | None,
        port: int = 0,
    ) -> None:
        """Listen on one port of all hosts; `get_tls` gives the context of each connection.

        Raises:
            OSError: the port is taken; 0: no port is free.
        """
        self._listening = listen_on(hosts, port, _BACKLOG)
        self.port = self._listening[0].getsockname()[1]
        self._get_tls = get_tls
        for listening in self._listening:
            listening.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Stop listening, and close the connections after pending replies."""
        self._pause()
        for listening in self._listening:
            listening.close()
        self._listening = []
        for connection in list(self._connections):
            connection.close()

    def abort(self) -> None:
        """Drop the open connections."""
        for connection in list(self._connections):
            connection.abort()

    def on_proven(self, connection: KvConnection) -> None:
        """Note an authenticated connection."""
        self._unproven.discard(connection)
        self._accept_again()

    def on_closed(self, connection: KvConnection) -> None:
        """Forget a closed connection."""
        self._unproven.discard(connection)
        self._connections.discard(connection)
        self._accept_again()

    def warn(self, name: str, why: str) -> None:
        """Log the refusal of a connection."""
        self.access.note(None, "", "key-value port", "", name, f"refused: {why}")
        self._log.warning("refused a line from %s: %s", name, why)

    # ------------------------------------------------------------ accepting

    def _accept(self, listening: socket.socket) -> None:
        """Accept waiting connections, as far as the bound on strangers allows."""
        for _ in range(_ACCEPTED_PER_TURN):
            if not self._make_room():
                return
            try:
                accepted, where = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._log.warning("cannot accept lines for now: %s", error.strerror)
                    self._pause(_ACCEPT_AGAIN_SECONDS)
                    return
                continue  # the connection ended before it was accepted
            host = where[0].removeprefix(_MAPPED) if "." in where[0] else where[0]
            connection = KvConnection(self, accepted, host, where[1])
            self._connections.add(connection)
            self._unproven.add(connection, host, self._loop.time())
            opening = self._loop.create_task(self._open(connection, accepted))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    def _make_room(self) -> bool:
        """Evict the connection chosen to make room; if all are too new, accept later."""
        surplus = self._unproven.find_surplus()
        if surplus is None:
            return True
        connection, since = surplus
        left = since + GRACE_SECONDS - self._loop.time()
        if left > 0:
            self._pause(left)
            self._is_full = True
            return False
        connection.evict(f"more than {self._unproven.most} connections have shown no proof")
        return True

    def _pause(self, seconds: float | None = None) -> None:
        """Leave connections in the backlog, for so long, or until the end."""
        for listening in self._listening:
            self._loop.remove_reader(listening)
        if self._again is not None:
            self._again.cancel()
        self._again = None if seconds is None else self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._again = None
        self._is_full = False
        for listening in self._listening:
            self._loop.add_reader(listening, self._accept, listening)

    def _accept_again(self) -> None:
        if self._is_full and self._again is not None:
            self._again.cancel()
            self._resume()

    async def _open(self, connection: KvConnection, accepted: socket.socket) -> None:
        """Make a transport of an accepted connection; failures close the descriptor."""
        try:
            for level, option, value in _OPTIONS:
                accepted.setsockopt(level, option, value)
            await self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=None if self._get_tls is None else self._get_tls(),
                ssl_handshake_timeout=None if self._get_tls is None else self.hello_timeout,
            )
        except OSError as error:  # of TLS as well; it took too long, or went away
            self.warn(connection.name, f"{type(error).__name__}: {error}")
        finally:
            if not connection.is_open:
                self.on_closed(connection)
                accepted.close()
