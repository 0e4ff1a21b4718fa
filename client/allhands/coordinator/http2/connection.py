"""HTTP/2 connection of an event loop to a gRPC server: bytes of streams, in both directions.

The protocol is carried out by `h2`, which does no I/O.
"""

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from typing import Final, Protocol, cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

Header = tuple[bytes, bytes]

_WINDOW: Final = 4 << 20
"""Bytes that the server may send ahead of what this side has taken in."""
_LARGEST_HEADERS: Final = 128 << 10
"""A verdict travels in trailers, with where the program of each late rank is."""
_FRAME_HEADER: Final = 9
_GOAWAY: Final = 0x7
_ALIVE_SECONDS: Final = 10
_PROBES: Final = 2
_CLOSE_SECONDS: Final = 0.5
_UNACKNOWLEDGED_SECONDS: Final = 30
"""Without an acknowledgement of the other host's kernel, after which the connection ends. A server
that is stopped for a while acknowledges."""


class StreamHandler(Protocol):
    """The owner of a stream, to be told what comes; called on the loop, and must not block."""

    def on_headers(self, headers: Sequence[Header]) -> None:
        """Take the headers of the response, or its trailers."""

    def on_data(self, data: bytes) -> None: ...

    def on_end(self) -> None:
        """Note that the server has ended its side."""

    def on_reset(self, code: int) -> None:
        """Note that the server has given the stream up, with an error code of HTTP/2."""

    def on_room(self) -> None:
        """Note that more can be sent than before."""

    def on_connection_lost(self, reason: str) -> None: ...


class Http2Connection(asyncio.Protocol):
    """A connection, used on the loop alone that has made it."""

    def __init__(self) -> None:
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._h2.local_settings = Settings(
            client=True,
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW,
                SettingCodes.MAX_HEADER_LIST_SIZE: _LARGEST_HEADERS,
            },
        )
        self._h2.decoder.max_header_list_size = _LARGEST_HEADERS
        self._handlers: dict[int, StreamHandler] = {}
        self._transport: asyncio.Transport | None = None
        self._closed: asyncio.Future[None] | None = None
        self._held = bytearray()
        self._is_choked = False
        self._end = ""
        """Why no more streams can be opened; empty: they can."""

    # ------------------------------------------------------------ streams

    @property
    def is_usable(self) -> bool:
        """Whether streams can be opened."""
        return not self._end

    def open_stream(self, headers: Sequence[Header], handler: StreamHandler) -> int:
        """Open a stream with a request's headers; return its number.

        Raises:
            ConnectionError: the connection has ended or ends, or has too many streams.
        """
        if self._end:
            raise ConnectionError(self._end)
        number = self._h2.get_next_available_stream_id()
        try:
            self._h2.send_headers(number, headers)
        except ProtocolError as error:
            raise ConnectionError(str(error) or type(error).__name__) from error
        self._handlers[number] = handler
        self._flush()
        return number

    def send(self, number: int, data: memoryview, *, is_last: bool) -> int | None:
        """Send a part of the data, as much as there is room for; return its bytes.

        With `is_last`, this side of the stream ends with the last byte. None: nothing can be sent
        now, not even the end of nothing.
        """
        if number not in self._handlers or self._is_choked:
            return None
        room = self._h2.local_flow_control_window(number)
        sent = 0
        while True:
            part = data[sent : sent + max(min(room - sent, self._h2.max_outbound_frame_size), 0)]
            if data and not part:
                break
            sent += len(part)
            try:
                self._h2.send_data(number, part, end_stream=is_last and sent == len(data))
            except ProtocolError:
                return None  # the server has ended the stream, which the handler is told next
            if sent == len(data):
                break
        self._flush()
        return sent

    def reset(self, number: int) -> None:
        """Give a stream up; nothing of it is heard any more. Idempotent."""
        if self._handlers.pop(number, None) is None or self._transport is None:
            return
        with contextlib.suppress(ProtocolError):  # it has ended on both sides
            self._h2.reset_stream(number, ErrorCodes.CANCEL)
        self._flush()
        self._close_if_idle()

    def close(self) -> None:
        """Close the connection; streams under way end. Idempotent."""
        self._fail("the connection was closed")
        if self._transport is not None:
            with contextlib.suppress(ProtocolError):
                self._h2.close_connection()
            self._flush()
            self._transport.close()

    async def wait_closed(self) -> None:
        """Wait until the socket is closed; what the server does not take in is given up soon."""
        if self._closed is None or self._closed.done():
            return
        await asyncio.wait([self._closed], timeout=_CLOSE_SECONDS)
        if self._transport is not None:
            self._transport.abort()
            await self._closed

    # ------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not descend from asyncio's.
        self._transport = made = cast(asyncio.Transport, transport)
        self._closed = asyncio.get_running_loop().create_future()
        if (own := made.get_extra_info("socket")) is not None:
            _watch_peer(own)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_WINDOW)
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._held += data
        frames = bytearray()
        begin = 0
        while len(self._held) - begin >= _FRAME_HEADER:
            end = begin + _FRAME_HEADER + int.from_bytes(self._held[begin : begin + 3], "big")
            if end - begin > self._h2.max_inbound_frame_size + _FRAME_HEADER:
                end = len(self._held)  # h2 refuses it
            if end > len(self._held):
                break
            if self._held[begin + 3] == _GOAWAY:
                self._on_goaway(bytes(self._held[begin + _FRAME_HEADER : end]))
            else:
                frames += self._held[begin:end]
            begin = end
        del self._held[:begin]
        try:
            events = self._h2.receive_data(bytes(frames))
        except ProtocolError as error:
            self._break(f"what answers speaks no gRPC: {error or type(error).__name__}")
            return
        for event in events:
            self._dispatch(event)
        self._flush()

    def pause_writing(self) -> None:
        self._is_choked = True

    def resume_writing(self) -> None:
        self._is_choked = False
        self._tell_room()

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(str(error) if error else "the other side closed the connection")
        self._transport = None
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)

    # ------------------------------------------------------------ what comes

    def _dispatch(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            number = event.stream_id
            assert number is not None
            # Whoever reads a stream takes in all that comes: to hold the server up helps nobody.
            with contextlib.suppress(ProtocolError):  # it has been given up meanwhile
                self._h2.acknowledge_received_data(event.flow_controlled_length or 0, number)
            if (handler := self._handlers.get(number)) is not None:
                handler.on_data(event.data or b"")
        elif isinstance(event, ResponseReceived | TrailersReceived):
            if (handler := self._handlers.get(event.stream_id or 0)) is not None:
                handler.on_headers(cast("Sequence[Header]", event.headers or ()))
        elif isinstance(event, StreamEnded):
            self._end_stream(event.stream_id or 0)
        elif isinstance(event, StreamReset):
            if (handler := self._handlers.pop(event.stream_id or 0, None)) is not None:
                handler.on_reset(int(event.error_code or 0))
            self._close_if_idle()
        elif isinstance(event, WindowUpdated):
            self._tell_room()

    def _end_stream(self, number: int) -> None:
        if (handler := self._handlers.pop(number, None)) is None:
            return
        handler.on_end()
        with contextlib.suppress(ProtocolError):  # where this side has ended too, there is no more
            self._h2.reset_stream(number, ErrorCodes.NO_ERROR)
        self._close_if_idle()

    def _on_goaway(self, payload: bytes) -> None:
        """Open no more streams; those that the server still serves go on.

        To `h2` the connection would be over with this frame.
        """
        last = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
        self._end = self._end or "the server is going down"
        for number in [one for one in self._handlers if one > last]:
            self._handlers.pop(number).on_connection_lost(self._end)
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        """Close a connection on which no stream is left, nor can be opened."""
        if self._end and not self._handlers and self._transport is not None:
            self._transport.close()

    def _tell_room(self) -> None:
        for handler in list(self._handlers.values()):
            handler.on_room()

    def _break(self, reason: str) -> None:
        self._fail(reason)
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, reason: str) -> None:
        self._end = self._end or reason
        handlers, self._handlers = self._handlers, {}
        for handler in handlers.values():
            handler.on_connection_lost(self._end)

    def _flush(self) -> None:
        if self._transport is not None and (data := self._h2.data_to_send()):
            self._transport.write(data)


def _watch_peer(connection: socket.socket) -> None:
    """Have the system end the connection to a host that has vanished without a word."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _ALIVE_SECONDS),
        (socket.TCP_KEEPINTVL, _ALIVE_SECONDS),
        (socket.TCP_KEEPCNT, _PROBES),
        (socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_SECONDS * 1000),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
