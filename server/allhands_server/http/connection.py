"""A connection of the HTTP port: uvicorn's HTTP/1.1, with bounds on what a caller may hold."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, cast

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

HAS_CERTIFICATE = "allhands.has_certificate"
"""In the state of a request's scope: whether the caller has shown a certificate that is trusted."""
BEGIN_STREAM = "allhands.begin_stream"
"""In the same place: to be called before an answer without an end. These are to be bounded."""
REQUEST_SECONDS = 10.0
"""From a connection, or from the end of an answer, until the next answer has left. Of an answer
without an end: from when what is not taken in fills the buffer, until there is room again."""
LARGEST_HEAD = 16 << 10
"""Bytes of a request's line and headers."""
_UNHEARD_MILLISECONDS = 30_000
"""For which a host may acknowledge nothing of an answer without an end; then it is gone."""
_IDLE_SECONDS = 5
"""For which a connection may wait for its next request."""

logger = logging.getLogger(__name__)


def configure(app: Any) -> Config:
    """Return the settings of connections that serve an ASGI application."""
    config = Config(
        app,
        loop="none",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=_IDLE_SECONDS,
        h11_max_incomplete_event_size=LARGEST_HEAD,
    )
    config.load()
    return config


class HttpConnection(H11Protocol):
    """A connection that ends where a request takes too long to come, or its answer to be taken.

    Lines about what strangers send are left out, as strangers decide their number.
    """

    def __init__(
        self,
        config: Config,
        state: ServerState,
        on_closed: Callable[["HttpConnection"], None],
        on_stream: Callable[["HttpConnection"], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(config, state, {}, loop)
        self.logger = _ErrorsAlone(logger)  # type: ignore[assignment]  # it logs alike
        self.access_log = False
        self._on_closed = on_closed
        self._on_stream = on_stream
        self._is_streaming = False
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Whether the connection has a transport."""
        return self.transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        encrypted: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        has_certificate = encrypted is not None and bool(encrypted.getpeercert())
        self.app_state = {HAS_CERTIFICATE: has_certificate, BEGIN_STREAM: self._begin_stream}
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)
        self._on_closed(self)

    def pause_writing(self) -> None:
        if self._is_streaming:
            self._set_deadline()
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._is_streaming:
            self._cancel_deadline()
        super().resume_writing()

    def on_response_complete(self) -> None:
        self._is_streaming = False
        if not self.transport.is_closing():  # else the rest has to be taken in time as well
            self._set_deadline()
        super().on_response_complete()

    def abort(self) -> None:
        """End the connection at once. Idempotent."""
        if self.transport is not None:
            self.transport.abort()

    def _begin_stream(self) -> None:
        """Let the answer go on for as long as the caller takes it in."""
        self._is_streaming = True
        self._cancel_deadline()
        end = self.transport.get_extra_info("socket")
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNHEARD_MILLISECONDS)
        self._on_stream(self)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _set_deadline(self) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self.abort)


class _ErrorsAlone(logging.LoggerAdapter[logging.Logger]):
    """A logger of errors alone, such as exceptions of the application."""

    level = logging.ERROR

    def isEnabledFor(self, level: int) -> bool:
        return level >= logging.ERROR and super().isEnabledFor(level)
