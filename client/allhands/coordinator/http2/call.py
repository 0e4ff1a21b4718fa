"""gRPC calls over HTTP/2: messages in frames, deadlines, and how a call ended.

See "gRPC over HTTP2" of the gRPC project.
"""

import asyncio
import base64
import binascii
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Generic, TypeVar
from urllib.parse import unquote_to_bytes

from allhands.coordinator.call_failed import CallFailed, NamedCode, StatusCode, Trailers
from allhands.coordinator.http2.connection import Header, Http2Connection

Q = TypeVar("Q")
P = TypeVar("P")

_PREFIX: Final = 5
"""Bytes before a message: whether it is compressed, and its length."""
_CODES: Final = {code.value: code for code in StatusCode}
_CODES_OF_RESETS: Final = {
    0x7: StatusCode.UNAVAILABLE,  # refused before anything was done
    0x8: StatusCode.CANCELLED,
    0xB: StatusCode.RESOURCE_EXHAUSTED,
    0xC: StatusCode.PERMISSION_DENIED,
}
_CODES_OF_HTTP: Final = {
    b"400": StatusCode.INTERNAL,
    b"401": StatusCode.UNAUTHENTICATED,
    b"403": StatusCode.PERMISSION_DENIED,
    b"404": StatusCode.UNIMPLEMENTED,
    b"429": StatusCode.UNAVAILABLE,
    b"502": StatusCode.UNAVAILABLE,
    b"503": StatusCode.UNAVAILABLE,
    b"504": StatusCode.UNAVAILABLE,
}
_LARGEST_MILLISECONDS: Final = 99_999_999

END: Final = None
"""What is read of a call that has ended well."""

Failure = Callable[[NamedCode, str | None, Trailers], CallFailed]
"""Class of failures that a caller knows."""
Opener = Callable[[], Coroutine[Any, Any, Http2Connection]]


class Http2Call(Generic[Q, P]):
    """A call: messages in both directions, in the interface of `grpc.aio.StreamStreamCall`.

    It begins to connect when it is made, and lives on the running loop. A failed call raises
    `CallFailed`, one that this side cancelled `asyncio.CancelledError`.
    """

    def __init__(
        self,
        open_connection: Opener,
        headers: Sequence[Header],
        serialize: Callable[[Q], bytes],
        deserialize: Callable[[bytes], P],
        timeout: float | None = None,
        failure: Failure = CallFailed,
    ) -> None:
        self._make_failure = failure
        self._loop = asyncio.get_running_loop()
        self._serialize = serialize
        self._deserialize = deserialize
        self._connection: Http2Connection | None = None
        self._number = 0
        self._outgoing: deque[memoryview] = deque()
        self._has_half_closed = False
        self._has_sent_end = False
        self._incoming = bytearray()
        self._messages: deque[bytes] = deque()
        self._headers: list[Header] = []
        self._error: CallFailed | None = None
        """How the call ended; its code may be OK. None: it has not."""
        self._is_cancelled = False
        self._changed: set[asyncio.Future[None]] = set()
        self._callbacks: list[Callable[[Any], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        if timeout is not None:
            self._timer = self._loop.call_later(max(timeout, 0.0), self._on_deadline)
            headers = (*headers, (b"grpc-timeout", _encode_timeout(timeout)))
        self._opening = self._loop.create_task(self._open(open_connection, headers))

    # ------------------------------------------------------------ interface of gRPC

    async def write(self, request: Q) -> None:
        """Send a message; returns when all of it is on its way.

        Raises:
            asyncio.InvalidStateError: the call is over.
            CallFailed: it ended meanwhile.
        """
        if self._error is not None or self._has_half_closed:
            raise asyncio.InvalidStateError("RPC already finished.")
        self._put(self._serialize(request))
        while self._outgoing:
            self._check()
            await self._wait_change()

    async def done_writing(self) -> None:
        """End this side: no more messages come."""
        self._has_half_closed = True
        self._send()

    async def read(self) -> Any:
        """Return the next message, or END where the server has ended the call well."""
        while not self._messages:
            if self._error is not None:
                self._check()
                return END
            await self._wait_change()
        return self._deserialize(self._messages.popleft())

    def done(self) -> bool:
        return self._error is not None

    def cancel(self) -> bool:
        """Give the call up; return whether it was still under way."""
        if self._error is not None:
            return False
        self._is_cancelled = True
        self._finish(StatusCode.CANCELLED, "Locally cancelled by application!")
        return True

    async def code(self) -> NamedCode:
        return (await self._wait_end()).code()

    async def details(self) -> str | None:
        return (await self._wait_end()).details()

    async def trailing_metadata(self) -> Trailers:
        return (await self._wait_end()).trailing_metadata()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self._error is not None:
            callback(self)
        else:
            self._callbacks.append(callback)

    async def request(self, request: Q) -> P:
        """Send the only message, and return the only one that comes back."""
        self._put(self._serialize(request))
        self._has_half_closed = True
        self._send()
        try:
            reply = await self.read()
            while self._error is None:  # the status comes behind the message
                await self._wait_change()
            self._check()
        finally:
            self.cancel()
        if reply is END:
            text = "the call has ended without a reply"
            raise self._make_failure(StatusCode.INTERNAL, text, ())
        found: P = reply
        return found

    # ------------------------------------------------------------ connection

    async def _open(self, open_connection: Opener, headers: Sequence[Header]) -> None:
        try:
            connection = await open_connection()
            if self._error is None:
                self._number = connection.open_stream(headers, self)
                self._connection = connection
                self._send()
        except Exception as error:  # whatever it is, the call is not to wait for its deadline
            self._finish(StatusCode.UNAVAILABLE, str(error) or type(error).__name__)

    def on_headers(self, headers: Sequence[Header]) -> None:
        self._headers += headers

    def on_data(self, data: bytes) -> None:
        self._incoming += data
        begin = 0
        while len(self._incoming) - begin >= _PREFIX:
            end = (
                begin + _PREFIX + int.from_bytes(self._incoming[begin + 1 : begin + _PREFIX], "big")
            )
            if self._incoming[begin]:
                self._finish(StatusCode.INTERNAL, "the message is compressed")
                return
            if end > len(self._incoming):
                break
            self._messages.append(bytes(self._incoming[begin + _PREFIX : end]))
            begin = end
        if begin:
            del self._incoming[:begin]
            self._on_change()

    def on_end(self) -> None:
        """Read how the call ended from the trailers."""
        self._number = 0
        found = dict(self._headers)
        code = _CODES.get(_to_int(found.get(b"grpc-status", b"")))
        if code is None:
            http = found.get(b":status", b"")
            code = _CODES_OF_HTTP.get(http, StatusCode.UNKNOWN)
            self._finish(code, f"Received http2 header with status: {http.decode('latin-1')}")
            return
        details = unquote_to_bytes(found.get(b"grpc-message", b"")).decode(errors="replace")
        self._finish(code, details, _decode_metadata(self._headers))

    def on_reset(self, code: int) -> None:
        self._number = 0
        mapped = _CODES_OF_RESETS.get(code, StatusCode.INTERNAL)
        self._finish(mapped, f"the coordinator broke the call off (HTTP/2 error {code})")

    def on_room(self) -> None:
        self._send()

    def on_connection_lost(self, reason: str) -> None:
        self._number = 0
        self._finish(StatusCode.UNAVAILABLE, reason)

    def _on_deadline(self) -> None:
        self._finish(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    # ------------------------------------------------------------ state

    def _put(self, message: bytes) -> None:
        self._outgoing.append(memoryview(b"\0" + len(message).to_bytes(4, "big") + message))
        self._send()

    def _send(self) -> None:
        """Hand the connection what there is room for."""
        if self._connection is None or not self._number or self._has_sent_end:
            return
        if self._has_half_closed and not self._outgoing:
            self._outgoing.append(memoryview(b""))
        while self._outgoing:
            data = self._outgoing[0]
            is_last = self._has_half_closed and len(self._outgoing) == 1
            sent = self._connection.send(self._number, data, is_last=is_last)
            if sent is None:
                return
            if sent < len(data):
                self._outgoing[0] = data[sent:]
                return
            self._outgoing.popleft()
            self._has_sent_end = is_last
        self._on_change()

    def _finish(
        self,
        code: StatusCode,
        details: str,
        trailers: Trailers = (),
    ) -> None:
        if self._error is not None:
            return
        self._error = self._make_failure(code, details, trailers)
        if self._timer is not None:
            self._timer.cancel()
        self._opening.cancel()
        if self._connection is not None and self._number:
            self._connection.reset(self._number)
        self._connection = None
        self._outgoing.clear()
        self._incoming.clear()
        self._on_change()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._loop.call_soon(callback, self)

    def _check(self) -> None:
        """Raise the failure with which the call ended, if it did."""
        if self._is_cancelled:
            raise asyncio.CancelledError
        if self._error is not None and self._error.status is not StatusCode.OK:
            raise self._error

    async def _wait_end(self) -> CallFailed:
        while self._error is None:
            await self._wait_change()
        return self._error

    async def _wait_change(self) -> None:
        """Wait until something has come, has gone, or has ended."""
        changed = self._loop.create_future()
        self._changed.add(changed)
        try:
            await changed
        finally:
            self._changed.discard(changed)

    def _on_change(self) -> None:
        for changed in self._changed:
            if not changed.done():
                changed.set_result(None)


def make_headers(
    method: str, authority: str, scheme: str, metadata: Sequence[tuple[str, str | bytes]]
) -> list[Header]:
    """Return the headers of a request; binary values are those of keys that end with -bin."""
    headers = [
        (b":method", b"POST"),
        (b":scheme", scheme.encode()),
        (b":path", method.encode()),
        (b":authority", authority.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"allhands-python"),
    ]
    for key, value in metadata:
        if isinstance(value, bytes):
            value = base64.b64encode(value).rstrip(b"=").decode()
        headers.append((key.encode(), value.encode()))
    return headers


def _encode_timeout(seconds: float) -> bytes:
    """Return a timeout as gRPC writes it: at most eight digits, and a unit."""
    milliseconds = max(int(seconds * 1000), 0)
    if milliseconds <= _LARGEST_MILLISECONDS:
        return b"%dm" % milliseconds
    return b"%dS" % min(int(seconds), _LARGEST_MILLISECONDS)


def _decode_metadata(headers: Sequence[Header]) -> list[tuple[str, str | bytes]]:
    """Return a server's own trailers."""
    found: list[tuple[str, str | bytes]] = []
    for key, value in headers:
        name = key.decode("latin-1")
        if name.startswith((":", "grpc-")) or name in ("content-type", "te"):
            continue
        if name.endswith("-bin"):
            with contextlib.suppress(binascii.Error):
                found.append((name, base64.b64decode(value + b"=" * (-len(value) % 4))))
        else:
            found.append((name, value.decode("latin-1")))
    return found


def _to_int(text: bytes) -> int:
    return int(text) if text.isdigit() else -1
