"""The sending end of a raw-socket link."""

import asyncio
import math
import socket
from collections.abc import Callable, Sequence

from allhands.escapes import one_line
from allhands.transport.frame import HEADER_BYTES, Frame, FrameError, Kind, extent, unpack
from allhands.transport.link import LinkBroken
from allhands.transport.socket_inbound import LARGEST_TEXT, WENT_AWAY, bye
from allhands.transport.tcp_info import last_acknowledged, round_trip

_NEAR_MICROSECONDS = 500
"""Round trips shorter than this are of one host or one switch: 1 MiB keeps 16 Gbit/s busy."""
_NEAR_BUFFER = 512 << 10
"""The system takes it twice. 64 MiB of all_reduce between 2 namespaces, milliseconds: 29 to 37,
with 128 KiB 72, with 768 KiB and more, or what the system chooses, 41 to 60."""
_MOST_PIECES = 512
"""Of one write; the system allows 1024."""


class SocketLink:
    """One connection to one peer."""

    def __init__(self, connection: socket.socket, broken: Callable[[str], None]) -> None:
        self._socket = connection
        self._broken = broken
        self._loop = asyncio.get_running_loop()
        self._rest: list[memoryview] = []
        """What is still to be written of the frame under way."""
        self._written: asyncio.Future[None] | None = None
        self._answer = b""
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._reason: str | None = None
        self._closed = False
        self._loop.add_reader(connection, self._readable)

    def offer(self, frame: Frame) -> bool:
        if self._rest or self._closed or self._reason is not None:
            return False
        if self._write(frame):
            self.let_go()
        return self._reason is None

    async def send(self, frame: Frame) -> None:
        if self._closed:
            raise LinkBroken("the link is closed")
        await self._send(frame)

    def let_go(self) -> None:
        if self._rest:
            self._rest = [memoryview(b"".join(self._rest))]

    def last_acknowledged(self) -> float:
        """Return when the peer's system last acknowledged something, on the monotonic clock."""
        return -math.inf if self._reason is not None else last_acknowledged(self._socket)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await self._send([bye("")])
            await asyncio.shield(self._ended)
            if self._reason is not None:
                raise LinkBroken(self._reason)
        finally:
            self._end("the link is closed")

    def abort(self) -> None:
        self._closed = True
        self._end("the link is closed")

    # ------------------------------------------------------------ inside

    async def _send(self, frame: Frame) -> None:
        if self._rest:
            await self._all_written()
        if self._reason is not None:
            raise LinkBroken(self._reason)
        if self._write(frame):
            await self._all_written()
        if self._reason is not None:
            raise LinkBroken(self._reason)

    async def _all_written(self) -> None:
        try:
            while self._rest and self._reason is None:
                if self._written is None or self._written.done():
                    self._written = self._loop.create_future()
                await self._written
        except asyncio.CancelledError:
            self.let_go()
            raise

    def _write(self, frame: Frame) -> bool:
        """Begin a frame; return whether some of it is left for later."""
        missing = sum(map(len, frame))
        try:
            missing -= (written := self._socket.sendmsg(frame[:_MOST_PIECES]))
        except (BlockingIOError, InterruptedError):
            written = 0
        except OSError:
            self._end(WENT_AWAY)
            return False
        if not missing:
            return False
        self._rest = _behind([memoryview(piece) for piece in frame if len(piece)], written)
        self._push()
        if self._rest:
            self._loop.add_writer(self._socket, self._writable)
        return bool(self._rest)

    def _push(self) -> None:
        """Write what the system takes."""
        try:
            while self._rest:
                written = self._socket.sendmsg(self._rest[:_MOST_PIECES])
                self._rest = _behind(self._rest, written)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._end(WENT_AWAY)

    def _writable(self) -> None:
        self._push()
        if not self._rest and self._reason is None:
            self._loop.remove_writer(self._socket)
            self._wake()

    def _wake(self) -> None:
        if self._written is not None and not self._written.done():
            self._written.set_result(None)

    def _readable(self) -> None:
        """Take in how it ended: nothing else comes this way."""
        try:
            came = self._socket.recv(HEADER_BYTES + LARGEST_TEXT)
            self._answer += came
            if not came:
                self._end(WENT_AWAY)
            elif len(self._answer) >= HEADER_BYTES:
                self._answered()
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, FrameError):
            self._end(WENT_AWAY)

    def _answered(self) -> None:
        kind, nbytes = extent(memoryview(self._answer))
        if kind != Kind.BYE or nbytes > LARGEST_TEXT:
            raise FrameError("this is no answer")
        if len(self._answer) < HEADER_BYTES + nbytes:
            return
        unpack(self._answer)
        text = one_line(self._answer[HEADER_BYTES:].decode(errors="replace"))
        if self._closed and not text:
            if not self._ended.done():
                self._ended.set_result(None)
            self._loop.remove_reader(self._socket)
        else:
            self._end(text or "it closed the link")

    def _end(self, reason: str) -> None:
        if self._reason is not None:
            return
        self._reason = reason
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._rest = []
        self._wake()
        if not self._ended.done():
            self._ended.set_result(None)
        if not self._closed:
            self._broken(reason)


def fit_buffer(connection: socket.socket) -> None:
    """Give a connection over a short way a send buffer that stays in the cache.

    Left to itself it grows to 4 MiB, filled in one go while nobody reads what comes in.
    """
    if 0 < round_trip(connection) < _NEAR_MICROSECONDS:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _NEAR_BUFFER)


def _behind(pieces: Sequence[memoryview], written: int) -> list[memoryview]:
    """Return what follows the first `written` bytes."""
    for at, piece in enumerate(pieces):
        if written < len(piece):
            return [piece[written:], *pieces[at + 1 :]]
        written -= len(piece)
    return []
