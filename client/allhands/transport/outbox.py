"""What waits to be sent to one peer, and what may go next. Pure: no loop, no socket.

Small messages go unasked, within a budget that the receiver refills with CREDIT. Larger ones
wait until the receiver has posted the receive and says CLEAR: so no payload is ever on the way
to a peer that has no place for it, and memory stays bounded however large the array.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from allhands.transport.frame import CHUNK, Frame, FrameError, Header, Key, Kind, whole

EAGER = 256 << 10
"""Messages up to this many bytes go unasked, copied if they have to wait; both ends rely on it."""
UNASKED = 512 << 10
"""Those of collectives go unasked up to this many, one frame, when their turn comes: larger ones
would too often come before their receive, and have to be held."""
EAGER_BUDGET = 4 << 20
"""Bytes of unasked messages that may be with one peer, not yet taken in."""

_Turn: TypeAlias = tuple[bool, int, int]
"""What large messages take turns by: their call, or each for itself point to point."""


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

    def next_frame(self) -> Frame:
        """Put the next chunk into a frame, which refers to the memory of the message."""
        length = min(CHUNK, self.total - self.sent)
        header = Header(
            Kind.DATA, self.key, self.signature, self.total, self.sent, length, asked=self.asked
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


class Outbox:
    """The order of frames to one peer: control and small messages first, then the large ones.

    Calls take turns, frame by frame; messages of one call go one after the other, so that the
    first are complete, and used, while the others are on their way.

    `offer` takes a frame at once if the link has room for it, and says whether.
    """

    def __init__(self, offer: Callable[[Frame], bool] = lambda _: False) -> None:
        self._offer = offer
        self._urgent: deque[Frame] = deque()
        self._waiting: dict[Key, Outgoing] = {}
        self._cleared: dict[Key, Header] = {}
        self._bulk: dict[_Turn, deque[Outgoing]] = {}
        self._given: Outgoing | None = None
        """The message of the frame given out last, if that has not been taken yet."""
        self._is_given = False
        self._eager_room = EAGER_BUDGET

    def push(self, message: Outgoing) -> None:
        """Queue a message."""
        key = message.key
        if message.total <= EAGER and message.total <= self._eager_room:
            self._eager_room -= message.total
            frame = message.next_frame()
            if self._urgent or not self._offer(frame):
                self._urgent.append([whole(frame)])
            message.done(True)
        elif message.total <= unasked(key) and message.total <= self._eager_room:
            self._eager_room -= message.total
            self._line_up(message)
        elif (clear := self._cleared.pop(key, None)) is not None:
            self._start(message, clear)
        else:
            self._waiting[key] = message
            self.push_control(Header(Kind.ANNOUNCE, key, message.signature, message.total))

    def push_control(self, header: Header, payload: bytes = b"") -> None:
        frame = [header.pack() + payload]
        if self._urgent or not self._offer(frame):
            self._urgent.append(frame)

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
        elif message in self._bulk.get(_turn(message.key), ()):
            self._leave(message)
            if not message.asked:
                self._eager_room += message.total
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

    def next_frame(self) -> Frame | None:
        """Give the next frame out, None when nothing may go now; say `taken` before the next."""
        if self._urgent:
            self._is_given = True
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
        self._given, self._is_given = message, True
        return frame

    def taken(self) -> None:
        """Learn that the memory of the frame given out last is free."""
        message, self._given, self._is_given = self._given, None, False
        if message is not None and message.sent == message.total:
            message.done(True)

    def is_given(self, message: Outgoing) -> bool:
        """Say whether a frame that was given out refers to the memory of this message."""
        return self._given is message

    @property
    def has_next(self) -> bool:
        """Say whether a frame may go now."""
        return bool(self._urgent or self._bulk)

    @property
    def is_idle(self) -> bool:
        """Say whether nothing is queued, not even for a receiver that is not ready."""
        return not (self._urgent or self._bulk or self._waiting or self._is_given)

    def _start(self, message: Outgoing, clear: Header) -> None:
        if (clear.signature, clear.total) != (message.signature, message.total):
            message.done(False)
            return
        message.asked = True
        self._line_up(message)

    def _line_up(self, message: Outgoing) -> None:
        self._bulk.setdefault(_turn(message.key), deque()).append(message)

    def _leave(self, message: Outgoing) -> None:
        turn = _turn(message.key)
        self._bulk[turn].remove(message)
        if not self._bulk[turn]:
            del self._bulk[turn]


def unasked(key: Key) -> int:
    """Return up to how many bytes a message under this key needs not be asked for.

    Those to a point must not pass each other, and so none of them waits for its turn.
    """
    return EAGER if key.point_to_point else UNASKED


def _turn(key: Key) -> _Turn:
    return key.point_to_point, key.group, key.sequence
