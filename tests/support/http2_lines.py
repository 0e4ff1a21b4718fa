"""Connections of HTTP/2, written by hand: calls of gRPC whose messages stop in the middle."""

import asyncio
import socket
import struct
from enum import IntEnum


class _Kind(IntEnum):
    """Types of frames, RFC 9113."""

    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    WINDOW_UPDATE = 8


_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW = 4
_FRAME = 16384
_USUAL_WINDOW = 65535


class Http2Line:
    """A connection to a gRPC port; `close` ends it."""

    def __init__(self, connected: socket.socket, token: str | None) -> None:
        self._socket = connected
        self._loop = asyncio.get_running_loop()
        self._token = token
        self._next = 1
        self._window = self._initial = _USUAL_WINDOW
        self._windows: dict[int, int] = {}
        self._moved = asyncio.Event()
        self._sending = asyncio.Lock()
        self.endings: dict[int, bytes] = {}
        """By stream that has ended: its trailers as they came."""
        self.reading = self._loop.create_task(self._read())

    @classmethod
    async def open(cls, port: int, token: str | None, host: str = "127.0.0.1") -> "Http2Line":
        """Connect from an address of this host."""
        connected = socket.socket()
        connected.bind((host, 0))
        connected.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connected, ("127.0.0.1", port))
        await loop.sock_sendall(connected, _PREFACE + _encode_frame(_Kind.SETTINGS, 0, 0, b""))
        return cls(connected, token)

    async def begin(self, method: str, message: bytes = b"", announced: int = 0) -> int:
        """Begin a call; send a message, of which more bytes may be announced. Return the stream."""
        stream, self._next = self._next, self._next + 2
        self._windows[stream] = self._initial
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
        if self._token is not None:
            headers.append(("authorization", f"Bearer {self._token}"))
        block = b"".join(_encode_header(*one) for one in headers)
        await self._send(_encode_frame(_Kind.HEADERS, _END_HEADERS, stream, block))
        await self.send(stream, message, announced)
        return stream

    async def send(self, stream: int, message: bytes, announced: int = 0) -> None:
        """Send a message, of which more bytes may be announced."""
        await self.send_more(stream, struct.pack(">BI", 0, announced or len(message)) + message)

    async def send_more(self, stream: int, data: bytes) -> None:
        """Send bytes of a stream, as far as the peer's windows and the stream's end allow."""
        while data and stream not in self.endings:
            count = min(len(data), _FRAME, self._window, self._windows[stream])
            if count <= 0:
                self._moved.clear()
                await self._moved.wait()
                continue
            self._window -= count
            self._windows[stream] -= count
            await self._send(_encode_frame(_Kind.DATA, 0, stream, data[:count]))
            data = data[count:]

    async def wait_end(self, stream: int) -> bytes:
        """Return the trailers of a stream, encoded; gRPC writes texts as they are."""
        while stream not in self.endings:
            self._moved.clear()
            await self._moved.wait()
        return self.endings[stream]

    def close(self) -> None:
        self.reading.cancel()
        self._socket.close()

    async def _send(self, data: bytes) -> None:
        async with self._sending:  # of two at a time, the parts of their frames would mix
            await self._loop.sock_sendall(self._socket, data)

    async def _read(self) -> None:
        held = b""
        while come := await self._loop.sock_recv(self._socket, 1 << 16):
            held += come
            while len(held) >= 9 and len(held) >= 9 + int.from_bytes(held[:3], "big"):
                end = 9 + int.from_bytes(held[:3], "big")
                kind, flags, stream = struct.unpack(">BBI", held[3:9])
                await self._on_frame(kind, flags, stream, held[9:end])
                held = held[end:]
            self._moved.set()

    async def _on_frame(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        match kind:
            case _Kind.SETTINGS if not flags & _ACK:
                for begin in range(0, len(body), 6):
                    name, value = struct.unpack(">HI", body[begin : begin + 6])
                    if name == _INITIAL_WINDOW:
                        for one in self._windows:
                            self._windows[one] += value - self._initial
                        self._initial = value
                await self._send(_encode_frame(_Kind.SETTINGS, _ACK, 0, b""))
            case _Kind.PING if not flags & _ACK:
                await self._send(_encode_frame(_Kind.PING, _ACK, 0, body))
            case _Kind.WINDOW_UPDATE:
                (grown,) = struct.unpack(">I", body)
                if stream:
                    self._windows[stream] += grown
                else:
                    self._window += grown
            case _Kind.HEADERS if flags & _END_STREAM:
                self.endings[stream] = body
            case _Kind.RST_STREAM:
                self.endings.setdefault(stream, b"")


def _encode_frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body


def _encode_header(name: str, value: str) -> bytes:
    """Encode a header without index and compression; both texts are shorter than 127 bytes."""
    written = name.encode(), value.encode()
    assert max(map(len, written)) < 127
    return b"\0" + b"".join(bytes([len(one)]) + one for one in written)
