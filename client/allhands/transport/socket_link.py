"""The sending end of a raw-socket link."""

import asyncio
import math
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from allhands.escapes import escape_line
from allhands.transport.frame import HEADER_BYTES, Frame, FrameError, FrameKind, read_extent, unpack
from allhands.transport.link import LinkBroken
from allhands.transport.socket_inbound import MAX_TEXT_BYTES, WENT_AWAY, make_bye
from allhands.transport.tcp_info import read_last_ack_time, read_recovery_seconds, read_round_trip
from allhands.transport.tls_socket import Connection, TlsSocket, get_raw_socket

if TYPE_CHECKING:
    from allhands._native import LinkState

_NEAR_MICROSECONDS = 500
"""Round trips shorter than this are of one host or one switch: 1 MiB keeps 16 Gbit/s busy."""
_NEAR_BUFFER = 512 << 10
"""The system takes it twice. 64 MiB of all_reduce between 2 namespaces, milliseconds: 29 to 37,
with 128 KiB 72, with 768 KiB and more, or what the system chooses, 41 to 60."""
_MAX_PIECES = 512
"""Of one write; the system allows 1024."""


class SocketLink:
    """An outgoing TCP connection to one peer."""

    def __init__(self, connection: Connection, on_broken: Callable[[str], None]) -> None:
        self._socket = connection
        self._raw = get_raw_socket(connection)
        self._tls = connection if isinstance(connection, TlsSocket) else None
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._unwritten: list[memoryview] = []
        """What is still to be written of the frame under way."""
        self._write_future: asyncio.Future[None] | None = None
        self._sends = 0
        """How many `send`s are under way: also those that wait for the rest of an offered frame."""
        self._answer = b""
        self._end_future: asyncio.Future[None] = self._loop.create_future()
        self._reason: str | None = None
        self._is_closed = False
        self._state: LinkState | None = None
        self._loop.add_reader(self._raw, self._on_readable)

    def lend(self, state: "LinkState") -> bool:
        """Let a call write to the connection itself, if that is between two frames."""
        if self._sends or self._unwritten or self._has_unsent():
            return False
        if self._is_closed or self._reason is not None:
            return False
        if self._state is None:
            self._state = state
            channel = None if self._tls is None else self._tls.open_channel()
            state.connect_outbound(self._raw.fileno(), channel)
        return True

    def send_rest(self, rest: bytes) -> None:
        """Send the rest of a frame that a call has begun, after what is encrypted already."""
        if self._reason is None:
            if rest:
                self._unwritten.append(memoryview(rest))
            self._loop.add_writer(self._raw, self._on_writable)

    def offer(self, frame: Frame) -> bool:
        # A send that has waited for room goes on a turn of the loop after there is some.
        if self._sends or self._unwritten or self._is_closed or self._reason is not None:
            return False
        if self._state is not None and self._state.has_rest:
            return False
        if self._write(frame):
            self.let_go()
        return self._reason is None

    async def send(self, frame: Frame) -> None:
        if self._is_closed:
            raise LinkBroken("the link is closed")
        await self._send(frame)

    def let_go(self) -> None:
        if self._unwritten:
            self._unwritten = [memoryview(b"".join(self._unwritten))]

    def get_last_ack_time(self) -> float:
        """Return when the peer's system last acknowledged something, on the monotonic clock."""
        return -math.inf if self._reason is not None else read_last_ack_time(self._raw)

    def get_recovery_seconds(self) -> float:
        """Return the seconds until a lost packet is sent again and acknowledged; 0: unknown."""
        return 0.0 if self._reason is not None else read_recovery_seconds(self._raw)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self._send([make_bye("")])
            await asyncio.shield(self._end_future)
            if self._reason is not None:
                raise LinkBroken(self._reason)
        finally:
            self._end("the link is closed")

    def abort(self) -> None:
        self._is_closed = True
        self._end("the link is closed")

    async def _send(self, frame: Frame) -> None:
        self._sends += 1
        try:
            if self._unwritten:
                await self._wait_written()
            if self._reason is not None:
                raise LinkBroken(self._reason)
            if self._write(frame):
                await self._wait_written()
            if self._reason is not None:
                raise LinkBroken(self._reason)
        finally:
            self._sends -= 1

    async def _wait_written(self) -> None:
        try:
            while self._unwritten and self._reason is None:
                if self._write_future is None or self._write_future.done():
                    self._write_future = self._loop.create_future()
                await self._write_future
        except asyncio.CancelledError:
            self.let_go()
            raise

    def _write(self, frame: Frame) -> bool:
        """Begin a frame; return whether a rest is left for later."""
        missing = sum(map(len, frame))
        try:
            missing -= (written := self._socket.sendmsg(frame[:_MAX_PIECES]))
        except (BlockingIOError, InterruptedError):
            written = 0
        except OSError:
            self._end(WENT_AWAY)
            return False
        if not missing:
            if self._has_unsent():
                self._loop.add_writer(self._raw, self._on_writable)
            return False
        self._unwritten = _skip_bytes([memoryview(piece) for piece in frame if len(piece)], written)
        self._flush()
        if self._unwritten or self._has_unsent():
            self._loop.add_writer(self._raw, self._on_writable)
        return bool(self._unwritten)

    def _flush(self) -> None:
        """Write as much as the socket accepts."""
        try:
            while self._unwritten:
                written = self._socket.sendmsg(self._unwritten[:_MAX_PIECES])
                self._unwritten = _skip_bytes(self._unwritten, written)
            if self._tls is not None:
                self._tls.flush()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._end(WENT_AWAY)

    def _on_writable(self) -> None:
        self._flush()
        if not self._unwritten and self._reason is None:
            if not self._has_unsent():
                self._loop.remove_writer(self._raw)
            self._wake()

    def _has_unsent(self) -> bool:
        """Return whether bytes that TLS has accepted wait for the socket."""
        return self._tls is not None and self._tls.has_unsent

    def _wake(self) -> None:
        if self._write_future is not None and not self._write_future.done():
            self._write_future.set_result(None)

    def _on_readable(self) -> None:
        """Read the end of the link; no other data is expected in this direction."""
        try:
            came = self._socket.recv(HEADER_BYTES + MAX_TEXT_BYTES)
            self._answer += came
            if not came:
                self._end(WENT_AWAY)
            elif len(self._answer) >= HEADER_BYTES:
                self._parse_answer()
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, FrameError):
            self._end(WENT_AWAY)

    def _parse_answer(self) -> None:
        kind, nbytes = read_extent(memoryview(self._answer))
        if kind != FrameKind.BYE or nbytes > MAX_TEXT_BYTES:
            raise FrameError("this is no answer")
        if len(self._answer) < HEADER_BYTES + nbytes:
            return
        unpack(self._answer)
        text = escape_line(self._answer[HEADER_BYTES:].decode(errors="replace"))
        if self._is_closed and not text:
            if not self._end_future.done():
                self._end_future.set_result(None)
            self._loop.remove_reader(self._raw)
        else:
            self._end(text or "it closed the link")

    def _end(self, reason: str) -> None:
        if self._reason is not None:
            return
        self._reason = reason
        if self._state is not None:
            self._state.connect_outbound(-1, None)
        self._loop.remove_reader(self._raw)
        self._loop.remove_writer(self._raw)
        self._socket.close()
        self._unwritten = []
        self._wake()
        if not self._end_future.done():
            self._end_future.set_result(None)
        if not self._is_closed:
            self._on_broken(reason)


def fit_buffer(connection: socket.socket) -> None:
    """Give a connection over a short way a send buffer that stays in the cache.

    Left to itself it grows to 4 MiB, filled in one go while nobody reads what comes in.
    """
    if 0 < read_round_trip(connection) < _NEAR_MICROSECONDS:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _NEAR_BUFFER)


def _skip_bytes(pieces: Sequence[memoryview], written: int) -> list[memoryview]:
    """Return the buffers without the first `written` bytes."""
    for at, piece in enumerate(pieces):
        if written < len(piece):
            return [piece[written:], *pieces[at + 1 :]]
        written -= len(piece)
    return []
