"""What waits to be sent to one peer, and what may go next. Pure: no loop, no socket.

Small messages go unasked, within a budget that the receiver refills with CREDIT. Larger ones
wait until the receiver has posted the receive and says CLEAR: so no payload is ever on the way
to a peer that has no place for it, and memory stays bounded however large the array.
"""

from collections import deque
from collections.abc import Callable, Sequence

from allhands.transport.frame import CHUNK, FrameError, Header, Key, Kind

EAGER = 256 << 10
"""Messages up to this many bytes go unasked; both ends rely on it."""
EAGER_BUDGET = 4 << 20
"""Bytes of unasked messages that may be with one peer, not yet taken in."""


class Outgoing:
    """A message on its way out; owned by the call that sends it until `done` is called.

    `done(True)` says that its memory may be reused, not that it has arrived; `done(False)` that
    the receiver expects another message in its place.
    """

    __slots__ = ("asked", "done", "key", "sent", "signature", "total", "views")

    def __init__(
        self,
        key: Key,
        views: Sequence[memoryview],
        signature: int,
        done: Callable[[bool], None],
    ) -> None:
        self.key = key
        self.views = deque(views)
        self.total = sum(len(view) for view in views)
        self.signature = signature
        self.sent = 0
        self.asked = False
        """Whether the receiver has cleared it."""
        self.done = done

    def next_frame(self) -> bytes:
        """Copy the next chunk into a frame."""
        length = min(CHUNK, self.total - self.sent)
        header = Header(
            Kind.DATA, self.key, self.signature, self.total, self.sent, length, asked=self.asked
        )
        pieces: list[bytes | memoryview] = [header.pack()]
        missing = length
        while missing:
            view = self.views[0]
            if len(view) > missing:
                pieces.append(view[:missing])
                self.views[0] = view[missing:]
                missing = 0
            else:
                pieces.append(self.views.popleft())
                missing -= len(view)
        self.sent += length
        return b"".join(pieces)


class Outbox:
    """The order of frames to one peer: control and small messages first, large ones in turn."""

    def __init__(self) -> None:
        self._urgent: deque[bytes] = deque()
        self._waiting: dict[Key, Outgoing] = {}
        self._cleared: dict[Key, Header] = {}
        self._bulk: deque[Outgoing] = deque()
        self._eager_room = EAGER_BUDGET

    def push(self, message: Outgoing) -> None:
        """Queue a message."""
        key = message.key
        if message.total <= EAGER and message.total <= self._eager_room:
            self._eager_room -= message.total
            self._urgent.append(message.next_frame())
            message.done(True)
        elif (clear := self._cleared.pop(key, None)) is not None:
            self._start(message, clear)
        else:
            self._waiting[key] = message
            self.push_control(Header(Kind.ANNOUNCE, key, message.signature, message.total))

    def push_control(self, header: Header, payload: bytes = b"") -> None:
        self._urgent.append(header.pack() + payload)

    def cleared(self, header: Header) -> None:
        """The receiver is ready for this message."""
        message = self._waiting.pop(header.key, None)
        if message is not None:
            self._start(message, header)
        elif not header.key.point_to_point:
            self._cleared[header.key] = header  # it got there before us

    def credit(self, nbytes: int) -> None:
        if self._eager_room + nbytes > EAGER_BUDGET:
            raise FrameError(f"credit of {nbytes} bytes for more than was sent")
        self._eager_room += nbytes

    def withdraw(self, message: Outgoing) -> None:
        """Forget a message whose call ended early."""
        if self._waiting.get(message.key) is message:
            del self._waiting[message.key]
        elif message in self._bulk:
            self._bulk.remove(message)
        else:
            return  # it is out, or never came in
        if message.key.point_to_point:  # the receive is free for another message
            self.push_control(Header(Kind.WITHDRAW, message.key, message.signature, 0))

    def forget(self, group: int, sequence: int) -> None:
        """Drop what was said about calls of a group up to `sequence`: they are over here."""
        stale = [
            key
            for key in self._cleared
            if key.group == group and key.sequence <= sequence and not key.point_to_point
        ]
        for key in stale:
            del self._cleared[key]

    def next_frame(self) -> bytes | None:
        """Take the next frame out, None when nothing may go now."""
        if self._urgent:
            return self._urgent.popleft()
        if not self._bulk:
            return None
        message = self._bulk.popleft()
        frame = message.next_frame()
        if message.sent == message.total:
            message.done(True)  # its last bytes are copied
        else:
            self._bulk.append(message)
        return frame

    @property
    def is_idle(self) -> bool:
        """Say whether nothing is queued, not even for a receiver that is not ready."""
        return not (self._urgent or self._bulk or self._waiting)

    def _start(self, message: Outgoing, clear: Header) -> None:
        if (clear.signature, clear.total) != (message.signature, message.total):
            message.done(False)
            return
        message.asked = True
        self._bulk.append(message)
