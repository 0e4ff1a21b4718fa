"""Frames queued for a peer, and their order. Pure: no loop, no socket.

Eager messages (small) are sent at once, within a budget of bytes that the receiver refills with
CREDIT frames. Rendezvous messages (large) wait until the receiver has posted the receive and sends
CLEAR (the CTS): so no payload travels to a peer without a buffer for it, and memory stays bounded
whatever the array's size.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from allhands.transport.frame import (
    MAX_PAYLOAD_BYTES,
    Frame,
    FrameError,
    FrameKind,
    Header,
    MessageKey,
    whole,
)
from allhands.transport.link_state import LinkState, make_link_state

EAGER_BYTES = MAX_PAYLOAD_BYTES
"""Messages up to this many bytes go unasked, in one frame; both ends rely on it."""
BULK_EAGER_BYTES = 512 << 10
"""Likewise of calls in several slices, whose messages would too often come before their receives,
and have to be held."""
COPIED_EAGER_BYTES = 256 << 10
"""Those of collectives are copied up to this many, if they have to wait; larger ones keep their
memory until their turn comes. Those to a point must not pass each other: all are copied."""
LONG_EAGER_BYTES = 4 << 20
"""Of a message to a point that the native core sends unasked, in several frames one after the
other."""
EAGER_BUDGET = 6 << 20
"""Bytes of unasked messages that may be with one peer, not yet taken in: a long one, and what the
peer has taken in of others and not yet given back."""

_Flow: TypeAlias = tuple[bool, int, int]
"""What large messages take turns by: their call, or each for itself point to point."""


class PendingSend:
    """A message being sent; owned by the sending call until `done` is called.

    `done(True)` says that its memory may be reused, not that it has arrived; `done(False)` that
    the receiver expects another message in its place.
    """

    __slots__ = ("done", "eager_bytes", "is_cleared", "key", "sent", "signature", "total", "views")

    def __init__(
        self,
        key: MessageKey,
        views: Sequence[memoryview],
        signature: int,
        done: Callable[[bool], None],
        eager_bytes: int | None = None,
    ) -> None:
        """`eager_bytes` is up to which it goes unasked; None: `EAGER_BYTES`."""
        self.key = key
        self.views = deque(views)
        self.total = sum(len(view) for view in views)
        self.signature = signature
        self.sent = 0
        self.eager_bytes = EAGER_BYTES if eager_bytes is None else eager_bytes
        self.is_cleared = False
        """Whether the receiver has cleared it."""
        self.done = done

    def next_frame(self) -> Frame:
        """Put the next chunk into a frame, which refers to the memory of the message."""
        length = min(MAX_PAYLOAD_BYTES, self.total - self.sent)
        header = Header(
            FrameKind.DATA,
            self.key,
            self.signature,
            self.total,
            self.sent,
            length,
            is_cleared=self.is_cleared,
        )
        pieces: list[bytes | memoryview] = [header.pack()]
        missing = length
        if len(self.views) == 1 and length == self.total:
            pieces.append(self.views.popleft())
            missing = 0
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
        return pieces


def make_state() -> LinkState:
    """Return the state of new links, with all of the credit that there is."""
    return make_link_state(EAGER_BUDGET)


class Outbox:
    """The order of frames to one peer: control and small messages first, then the large ones.

    Calls take turns, frame by frame; messages of one call go one after the other, so that the
    first are complete, and used, while the others are on their way.

    `offer` takes a frame at once if the link has room for it, and says whether.
    """

    def __init__(
        self, offer: Callable[[Frame], bool] = lambda _: False, state: "LinkState | None" = None
    ) -> None:
        self._offer = offer
        self.state = make_state() if state is None else state
        """Has the credit for unasked messages."""
        self._urgent: deque[Frame] = deque()
        self._announced: dict[MessageKey, PendingSend] = {}
        self._early_cts: dict[MessageKey, Header] = {}
        self._bulk: dict[_Flow, deque[PendingSend]] = {}
        self._in_flight: PendingSend | None = None
        """The message of the frame given out last, if that has not been taken yet."""
        self._has_in_flight = False

    def push(self, message: PendingSend) -> None:
        """Queue a message."""
        key = message.key
        is_eager = message.total <= min(message.eager_bytes, self.state.credit)
        if is_eager and (key.is_p2p or message.total <= COPIED_EAGER_BYTES):
            self.state.credit -= message.total
            frame = message.next_frame()
            if self._urgent or not self._offer(frame):
                self._urgent.append([whole(frame)])
            message.done(True)
        elif is_eager:
            self.state.credit -= message.total
            self._enqueue(message)
        elif (clear := self._early_cts.pop(key, None)) is not None:
            self._start(message, clear)
        else:
            self._announced[key] = message
            self.push_control(Header(FrameKind.RTS, key, message.signature, message.total))

    def push_control(self, header: Header, payload: bytes = b"") -> None:
        frame = [header.pack() + payload]
        if self._urgent or not self._offer(frame):
            self._urgent.append(frame)

    def on_cts(self, header: Header) -> None:
        """The receiver is ready for this message."""
        message = self._announced.pop(header.key, None)
        if message is not None:
            self._start(message, header)
        elif not header.key.is_p2p:
            self._early_cts[header.key] = header  # it got there before us

    def add_credit(self, nbytes: int) -> None:
        if self.state.credit + nbytes > EAGER_BUDGET:
            raise FrameError(f"credit of {nbytes} bytes for more than was sent")
        self.state.credit += nbytes

    def cancel(self, message: PendingSend) -> None:
        """Cancel a message whose call ended early."""
        if self._announced.get(message.key) is message:
            del self._announced[message.key]
        elif message in self._bulk.get(_get_flow(message.key), ()):
            self._dequeue(message)
            if not message.is_cleared:
                self.state.credit += message.total
        else:
            return  # it is out, or never came in
        if message.key.is_p2p:  # the receive is free for another message
            self.push_control(Header(FrameKind.CANCEL, message.key, message.signature, 0))

    def forget(self, group: int, sequence: int) -> None:
        """Drop control frames about a group's calls up to `sequence`."""
        stale = [
            key
            for key in self._early_cts
            if key.group == group and key.sequence <= sequence and not key.is_p2p
        ]
        for key in stale:
            del self._early_cts[key]

    def next_frame(self) -> Frame | None:
        """Return the next frame, None if none may be sent; `finish_frame` must follow each."""
        if self._urgent:
            self._has_in_flight = True
            return self._urgent.popleft()
        if not self._bulk:
            return None
        turn, line = next(iter(self._bulk.items()))
        message = line[0]
        frame = message.next_frame()
        del self._bulk[turn]
        if message.sent == message.total:
            line.popleft()
        if line:
            self._bulk[turn] = line  # behind the others
        self._in_flight, self._has_in_flight = message, True
        return frame

    def finish_frame(self) -> None:
        """Mark the memory of the last frame as free."""
        message, self._in_flight, self._has_in_flight = self._in_flight, None, False
        if message is not None and message.sent == message.total:
            message.done(True)

    def is_in_flight(self, message: PendingSend) -> bool:
        """Return whether a frame in flight refers to the memory of this message."""
        return self._in_flight is message

    @property
    def has_next(self) -> bool:
        """Say whether a frame may go now."""
        return bool(self._urgent or self._bulk)

    @property
    def is_clear(self) -> bool:
        """Say whether nothing that may go now is queued or on its way."""
        return not (self._urgent or self._bulk or self._has_in_flight)

    @property
    def is_idle(self) -> bool:
        """Say whether nothing is queued, not even for a receiver that is not ready."""
        return not (self._urgent or self._bulk or self._announced or self._has_in_flight)

    def _start(self, message: PendingSend, cts: Header) -> None:
        if (cts.signature, cts.total) != (message.signature, message.total):
            message.done(False)
            return
        message.is_cleared = True
        self._enqueue(message)

    def _enqueue(self, message: PendingSend) -> None:
        self._bulk.setdefault(_get_flow(message.key), deque()).append(message)

    def _dequeue(self, message: PendingSend) -> None:
        turn = _get_flow(message.key)
        self._bulk[turn].remove(message)
        if not self._bulk[turn]:
            del self._bulk[turn]


def _get_flow(key: MessageKey) -> _Flow:
    return key.is_p2p, key.group, key.sequence
