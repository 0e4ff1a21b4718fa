"""The receiving end of a raw-socket link."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from allhands.transport.frame import (
    HEADER_BYTES,
    FrameError,
    FrameKind,
    Header,
    MessageKey,
    read_extent,
)
from allhands.transport.link import Gathering, Receiver, Sink
from allhands.transport.tcp_info import read_last_receive_time
from allhands.transport.tls_socket import Connection, TlsSocket, get_raw_socket

if TYPE_CHECKING:
    from allhands._native import LinkState

logger = logging.getLogger(__name__)

READ_BUFFER_BYTES = 256 << 10
"""Bytes read at once: what is reduced on its way stays in the cache."""
MAX_TEXT_BYTES = 4096
"""Payload bytes of a frame that is no data: the words of a refusal."""
WENT_AWAY = "its process or connection went away"

_KIND_AT = 3
"""Place of a frame's kind."""
_MAX_TAKEN_BACK = 64 << 10
"""Bytes of a frame that are copied so that calls can read from the connection."""
_MAX_READ_BYTES = 1 << 20
"""Bytes read from one peer before others have their turn."""


class InboundLink:
    """Link from a peer: parses frames straight into their destination buffers.

    `read_buffer` may be shared by all links of a loop. `on_end` is called with the peer and the
    reason of the link's end, None for an orderly end.
    """

    def __init__(
        self,
        connection: Connection,
        peer: int,
        receiver: Receiver,
        read_buffer: memoryview,
        on_end: Callable[[int, str | None], None],
    ) -> None:
        self._socket = connection
        self._raw = get_raw_socket(connection)
        self._tls = connection if isinstance(connection, TlsSocket) else None
        self.descriptor = connection.fileno()
        """What it was read from, also once that is closed."""
        self._peer = peer
        self._receiver = receiver
        self._read_buffer = read_buffer
        self._on_end = on_end
        self._sink: Sink | None = None
        self._missing = 0
        """Bytes of the sink's frame that are still to come."""
        self._unparsed = b""
        """The beginning of what cannot be used before more of it is here."""
        self._is_large = False
        """Whether the last frame went straight to its place, so that the next will as well."""
        self._is_over = False
        self._state: LinkState | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._raw, self.read_available)

    def get_last_receive_time(self) -> float:
        """Return when data last came, on the monotonic clock, taken in or not."""
        return -math.inf if self._is_over else read_last_receive_time(self._raw)

    def lend(self, state: "LinkState") -> bool:
        """Let a call read from the connection itself, if that is between two frames.

        The beginning of a frame that nobody waits for goes to what is read ahead.
        """
        if self._is_over or (self._tls is not None and self._tls.has_stopped):
            return False
        if isinstance(self._sink, Gathering) and self._sink.nbytes <= _MAX_TAKEN_BACK:
            self._unparsed, self._sink = self._sink.take_back(), None
        if self._sink is not None:
            return False
        if self._state is None:
            self._state = state
            state.take()  # of a link before this
            channel = None if self._tls is None else self._tls.open_channel()
            state.connect_inbound(self.descriptor, channel)
        if self._unparsed:
            begun, self._unparsed = self._unparsed, b""
            state.unread(begun)
        return True

    def read_ahead(self) -> None:
        """Process what a call has read and not used, and why it could not read on."""
        if self._state is not None and self._state.pending and not self._is_over:
            self._process(self._consume_ahead)
        if self._tls is not None and self._tls.has_stopped and not self._is_over:
            self._process(self._read_all)  # no event tells of it

    def deliver(self, frame: bytes) -> None:
        """Process a frame that a call has read."""
        if not self._is_over:
            self._process(lambda: self._deliver(frame[_KIND_AT], memoryview(frame)))

    def end(self, reason: str | None) -> None:
        if not self._is_over:
            self._is_over = True
            if self._state is not None:
                self._state.connect_inbound(-1, None)
            self._loop.remove_reader(self._raw)
            self._socket.close()
            self._on_end(self._peer, reason)

    def read_available(self) -> None:
        """Read the available bytes."""
        self.read_ahead()
        self._process(self._read_all)

    def _process(self, act: Callable[[], None]) -> None:
        """Do something with what came; break the link if that is no frame of a peer's."""
        try:
            act()
        except (BlockingIOError, InterruptedError):
            return
        except FrameError as error:
            reason = f"protocol error: {error}"
            logger.warning("broke the link from rank %d: %s", self._peer, error)
            self._send_bye(reason)
            self.end(reason)
        except OSError:
            self.end(WENT_AWAY)
        except BaseException:
            self.end("what it sent could not be taken in")  # and a part of it is lost
            raise

    def _consume_ahead(self) -> None:
        assert self._state is not None
        data = self._state.take()
        used = self._consume(memoryview(data))
        self._unparsed = data[used:]

    def _read_all(self) -> None:
        total = 0
        while self._may_read(total) and not self._is_over:
            came, asked = self._read()
            if came == 0:
                self.end(WENT_AWAY)
                return
            total += came
            if came < asked:
                return  # the system had no more

    def _may_read(self, total: int) -> bool:
        # No event tells of what TLS has read from the socket already.
        return total < _MAX_READ_BYTES or (self._tls is not None and self._tls.has_buffered)

    def _read(self) -> tuple[int, int]:
        """Read once; return how many bytes came, and how many could have."""
        sink = self._sink
        if sink is not None and not self._unparsed and (room := sink.room()) is not None:
            came = self._socket.recv_into(room)
            self._missing -= came
            if not self._missing:
                self._sink = None
                self._is_large = True
            if came:
                sink.filled(came)
            return came, len(room)
        kept = len(self._unparsed)
        # Behind a large frame comes another, whose payload should not pass through the page.
        size = HEADER_BYTES if self._is_large and kept < HEADER_BYTES else len(self._read_buffer)
        self._is_large = False
        self._read_buffer[:kept] = self._unparsed
        came = self._socket.recv_into(self._read_buffer[kept:size])
        if came:
            self._unparsed = b""
            have = self._read_buffer[: kept + came]
            used = self._consume(have)
            self._unparsed = bytes(have[used:])
        return came, size - kept

    def _consume(self, data: memoryview) -> int:
        """Consume the buffered bytes as far as possible; return the count."""
        at = 0
        while not self._is_over:
            if self._sink is not None:
                taken = self._sink.feed(data[at : at + self._missing]) if at < len(data) else 0
                at += taken
                self._missing -= taken
                if self._missing:
                    return at
                self._sink = None
            if len(data) - at < HEADER_BYTES:
                return at
            kind, nbytes = read_extent(data[at:])
            stop = at + HEADER_BYTES + nbytes
            if stop <= len(data):
                self._deliver(kind, data[at:stop])
                at = stop
            elif kind == FrameKind.DATA:
                self._sink = self._receiver.open(self._peer, bytes(data[at : at + HEADER_BYTES]))
                self._missing = nbytes
                at += HEADER_BYTES
            elif nbytes > MAX_TEXT_BYTES:
                raise FrameError(f"{nbytes} bytes are too many for a frame that is no data")
            else:
                return at
        return at

    def _deliver(self, kind: int, frame: memoryview) -> None:
        if kind != FrameKind.BYE:
            self._receiver.accept(self._peer, frame)
            return
        self._send_bye("")
        self.end(None)

    def _send_bye(self, text: str) -> None:
        """Send the reason of the end, if the peer still listens."""
        with contextlib.suppress(OSError):
            self._socket.send(make_bye(text))


def make_bye(text: str) -> bytes:
    """Return the last frame of a link; `text` is the reason of a break, else empty."""
    payload = text.encode()[:MAX_TEXT_BYTES]
    return Header(FrameKind.BYE, MessageKey(0, 0), 0, 0, 0, len(payload)).pack() + payload
