"""Listener of the HTTP port, on the coordinator's loop, with a bound on connections."""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

from uvicorn.server import ServerState

from allhands_proto.limited_log import LimitedLog
from allhands_proto.unproven import GRACE_SECONDS, UnprovenConnections, limit_to_share
from allhands_server.http.connection import HttpConnection, configure
from allhands_server.kv.sockets import listen_on

logger = logging.getLogger(__name__)

_BACKLOG = 128
_HANDSHAKE_SECONDS = 3.0
_AGAIN_SECONDS = 0.5
_PART = 16
"""One of so many descriptors of this process may be a connection of this port."""
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class HttpListener:
    """Listener of the HTTP port, with all its connections.

    Accepts connections itself, so that those in a handshake of TLS count, and each new one gets the
    certificate of now. Where there are too many, the oldest of the host with the most goes, of
    those whose answers have an end.
    """

    def __init__(self, app: Any, get_tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        """Serve an ASGI application; `get_tls` gives the context of each connection."""
        self._config = configure(app)
        self._get_tls = get_tls
        self._state = ServerState()
        self._loop = asyncio.get_running_loop()
        self._listening: list[socket.socket] = []
        self._open: UnprovenConnections[HttpConnection] = UnprovenConnections(limit_to_share(_PART))
        self._accepted: dict[HttpConnection, socket.socket] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._log = LimitedLog(logger, "connections of the HTTP port")
        self.port = 0

    @property
    def count(self) -> int:
        """Number of open connections."""
        return len(self._accepted)

    def listen(self, host: str, port: int) -> None:
        """Listen on an address; port 0: any that is free.

        Raises:
            OSError: the port is taken, or the host is not of this machine.
        """
        self._listening = listen_on((host,), port, _BACKLOG)
        self.port = self._listening[0].getsockname()[1]
        for listening in self._listening:
            listening.setblocking(False)
        self._resume()

    async def close(self) -> None:
        """Stop listening, and end the connections. Idempotent."""
        self._pause()
        for listening in self._listening:
            listening.close()
        self._listening = []
        for connection in list(self._accepted):
            self._end(connection)
        pending = [*self._opening, *self._state.tasks]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    # ------------------------------------------------------------ accepting

    def _accept(self, listening: socket.socket) -> None:
        """Accept a connection, unless there are too many and all of them new."""
        if not self._make_room():
            return
        try:
            accepted, where = listening.accept()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self._log.warning("cannot accept connections for now: %s", error.strerror)
                self._pause(_AGAIN_SECONDS)
            return  # else the connection ended before it was accepted
        accepted.setblocking(False)
        connection = HttpConnection(
            self._config, self._state, self._forget, self._open.discard, self._loop
        )
        self._accepted[connection] = accepted
        self._open.add(connection, where[0], self._loop.time())
        opening = self._loop.create_task(self._start(connection, accepted))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    def _make_room(self) -> bool:
        """End the connection chosen to make room; if all are too new, accept later."""
        if (surplus := self._open.find_surplus()) is None:
            return True
        connection, since = surplus
        left = since + GRACE_SECONDS - self._loop.time()
        if left > 0:
            self._pause(left)
            return False
        self._log.warning("ended the oldest of more than %d connections", self._open.most)
        self._end(connection)
        self._open.discard(connection)
        return True

    def _end(self, connection: HttpConnection) -> None:
        if connection.is_open:
            connection.abort()
        else:  # in a handshake of TLS, which ends at once where the connection does
            with contextlib.suppress(OSError):
                self._accepted[connection].shutdown(socket.SHUT_RDWR)

    def _forget(self, connection: HttpConnection) -> None:
        self._open.discard(connection)
        self._accepted.pop(connection, None)

    async def _start(self, connection: HttpConnection, accepted: socket.socket) -> None:
        """Make a transport of an accepted connection; failures close the descriptor."""
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=None if self._get_tls is None else self._get_tls(),
                ssl_handshake_timeout=None if self._get_tls is None else _HANDSHAKE_SECONDS,
            )
        except OSError as error:  # of TLS as well; it took too long, or went away
            self._log.warning("no connection was made: %s: %s", type(error).__name__, error)
        finally:
            if not connection.is_open:
                self._forget(connection)
                accepted.close()

    def _pause(self, seconds: float | None = None) -> None:
        """Leave connections in the backlog, for so long, or until the end."""
        for listening in self._listening:
            self._loop.remove_reader(listening)
        if self._again is not None:
            self._again.cancel()
        self._again = None if seconds is None else self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._again = None
        for listening in self._listening:
            self._loop.add_reader(listening, self._accept, listening)
