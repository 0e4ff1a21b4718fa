"""Channel of gRPC calls over HTTP/2 on the running loop, in the interface of `grpc.aio`."""

import asyncio
import ipaddress
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from allhands.coordinator.call_failed import CallFailed
from allhands.coordinator.dialling import connect_on_thread
from allhands.coordinator.endpoint import Address
from allhands.coordinator.http2.call import Failure, Http2Call, make_headers
from allhands.coordinator.http2.connection import Http2Connection

_CONNECT_SECONDS: Final = 20.0
_TURNS_TO_CLOSE: Final = 3


class Http2Channel:
    """A channel to one server, which connects with its first call, and again with a later one.

    It starts no thread, but one where the host is a name. Calls of one connection share it. Failed
    connections are tried again only by the next call.
    """

    def __init__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        tls_name: str | None = None,
        failure: Failure = CallFailed,
    ) -> None:
        """Take the server's address, and the failures of its calls.

        Args:
            tls: None: the connection is not encrypted.
            tls_name: name in the server's certificate; None: the host.
            failure: class of what failed calls raise.
        """
        self._host = host
        self._port = port
        self._tls = tls
        self._tls_name = (tls_name or host) if tls is not None else None
        self._failure = failure
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        self._authority = Address(host, port).target
        self._connection: Http2Connection | None = None
        self._connecting: asyncio.Task[Http2Connection] | None = None
        self._calls: set[Http2Call[Any, Any]] = set()
        self._is_closed = False

    def unary_unary(
        self,
        method: str,
        request_serializer: Any,
        response_deserializer: Any,
    ) -> Any:
        def call(
            request: object,
            timeout: float | None = None,
            metadata: Sequence[tuple[str, str | bytes]] = (),
        ) -> "asyncio.Task[Any]":
            made = self._make_call(
                method, request_serializer, response_deserializer, timeout, metadata
            )
            return asyncio.ensure_future(made.request(request))

        return call

    def stream_stream(
        self,
        method: str,
        request_serializer: Any,
        response_deserializer: Any,
    ) -> Any:
        def call(
            request_iterator: None = None,
            timeout: float | None = None,
            metadata: Sequence[tuple[str, str | bytes]] = (),
        ) -> Http2Call[Any, Any]:
            assert request_iterator is None, "requests are written one by one"
            return self._make_call(
                method, request_serializer, response_deserializer, timeout, metadata
            )

        return call

    async def close(self, grace: float | None = None) -> None:
        """Cancel the calls under way, and close the connection. Idempotent."""
        self._is_closed = True
        for call in list(self._calls):
            call.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._connection is not None:
            self._connection.close()
            await self._connection.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _make_call(
        self,
        method: str,
        serialize: Callable[[Any], bytes],
        deserialize: Callable[[bytes], Any],
        timeout: float | None,
        metadata: Sequence[tuple[str, str | bytes]],
    ) -> Http2Call[Any, Any]:
        scheme = "http" if self._tls is None else "https"
        headers = make_headers(method, self._tls_name or self._authority, scheme, metadata or ())
        call = Http2Call(self._connect, headers, serialize, deserialize, timeout, self._failure)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call

    async def _connect(self) -> Http2Connection:
        """Return the connection; it is made where there is none that can be used.

        Raises:
            ConnectionError: none can be made.
        """
        if self._is_closed:
            raise ConnectionError("the channel is closed")
        if self._connection is not None and self._connection.is_usable:
            return self._connection
        if self._connecting is None:
            self._connecting = asyncio.ensure_future(self._dial())
            self._connecting.add_done_callback(self._on_dialled)
        # A call that is cancelled leaves the connection to the others.
        return await asyncio.shield(self._connecting)

    def _on_dialled(self, dialled: "asyncio.Task[Http2Connection]") -> None:
        self._connecting = None
        if not dialled.cancelled() and dialled.exception() is None:
            self._connection = dialled.result()
            if self._is_closed:
                self._connection.close()

    async def _dial(self) -> Http2Connection:
        loop = asyncio.get_running_loop()
        where: dict[str, Any] = {"host": self._host, "port": self._port}
        try:
            if not _is_address(self._host):
                address = [(self._host, self._port)]
                sock, _ = await connect_on_thread(address, _CONNECT_SECONDS)
                sock.setblocking(False)
                where = {"sock": sock}
            async with asyncio.timeout(_CONNECT_SECONDS):
                _, made = await loop.create_connection(
                    Http2Connection, ssl=self._tls, server_hostname=self._tls_name, **where
                )
        except OSError as error:  # TimeoutError is one
            for _ in range(_TURNS_TO_CLOSE):
                await asyncio.sleep(0)  # the loop closes the socket in its next turns
            reason = error.strerror or str(error) or f"no answer within {_CONNECT_SECONDS:g} s"
            raise ConnectionError(f"failed to connect to {self._authority}: {reason}") from error
        return made


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
