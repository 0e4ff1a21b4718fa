"""Receiver of messages: an inbox with receives and replies, for tests."""

from allhands.transport.frame import FrameKind, Header, MessageKey
from allhands.transport.inbox import Inbox, MessageMismatch, PostedReceive, ReceiveSink

CHUNK, EAGER, UNASKED, BUDGET = 64, 32, 48, 192
"""As the miniature world has them."""
SIGNATURE = 5
PEER, OTHER = 3, 4


class Receive:
    """A receive with an outcome."""

    def __init__(
        self, total: int, signature: int = SIGNATURE, *, grain: int = 1, has_room: bool = False
    ) -> None:
        self.data = bytearray(b"-" * total)
        self.ended: list[MessageMismatch | None] = []
        room = self._room if has_room else None
        self.incoming = PostedReceive(
            total, signature, self._land, self.ended.append, alignment=grain, room=room
        )

    def _room(self, offset: int, length: int) -> memoryview:
        return memoryview(self.data)[offset : offset + length]

    def _land(self, offset: int, payload: memoryview) -> None:
        self.data[offset : offset + len(payload)] = payload

    @property
    def is_open(self) -> bool:
        return not self.ended

    @property
    def got(self) -> bytes | None:
        return bytes(self.data) if self.ended == [None] else None


class Receiver:
    """An inbox with replies."""

    def __init__(self) -> None:
        self.replies: list[tuple[int, Header]] = []
        self.inbox = Inbox(lambda peer, header: self.replies.append((peer, header)))

    def post(
        self,
        key: MessageKey,
        total: int,
        signature: int = SIGNATURE,
        *,
        grain: int = 1,
        has_room: bool = False,
    ) -> Receive:
        receive = Receive(total, signature, grain=grain, has_room=has_room)
        self.inbox.post(PEER, key, receive.incoming)
        return receive

    def post_open(self, source: int | None, total: int, tag: int = 0) -> Receive:
        receive = Receive(total)
        self.inbox.post_p2p(source, 1, tag, receive.incoming)
        return receive

    def data(
        self,
        key: MessageKey,
        payload: bytes,
        *,
        peer: int = PEER,
        total: int | None = None,
        offset: int = 0,
        asked: bool = False,
        signature: int = SIGNATURE,
    ) -> None:
        header = Header(
            FrameKind.DATA,
            key,
            signature,
            len(payload) if total is None else total,
            offset,
            len(payload),
            is_cleared=asked,
        )
        self.inbox.accept(peer, header, memoryview(payload))

    def open(
        self,
        key: MessageKey,
        length: int,
        *,
        total: int | None = None,
        offset: int = 0,
        asked: bool = False,
        signature: int = SIGNATURE,
    ) -> ReceiveSink | None:
        """Begin a frame with a later payload."""
        whole = length if total is None else total
        header = Header(FrameKind.DATA, key, signature, whole, offset, length, is_cleared=asked)
        return self.inbox.open(PEER, header)

    def say(self, kind: FrameKind, key: MessageKey, total: int, *, peer: int = PEER) -> None:
        self.inbox.accept(peer, Header(kind, key, SIGNATURE, total), memoryview(b""))

    def answered(self) -> list[tuple[int, FrameKind, MessageKey, int]]:
        said = [(peer, it.kind, it.key, it.total) for peer, it in self.replies]
        self.replies.clear()
        return said

    @property
    def is_empty(self) -> bool:
        inbox = self.inbox
        lines = (inbox._posted, inbox._early, inbox._p2p_early, inbox._p2p_posted)
        return not any(lines) and not any(inbox._held_bytes.values())


def to_point(number: int, tag: int = 0) -> MessageKey:
    return MessageKey(1, number, 0, tag, is_p2p=True)


KEY = MessageKey(1, 1)
