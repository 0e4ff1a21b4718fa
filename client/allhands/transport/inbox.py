"""Received messages matched with posted receives. Pure: no loop, no socket.

Messages of collectives are matched by key: both ends know it beforehand. Point-to-point messages
are matched as MPI has it: in the order sent, with the first receive posted that fits source and
tag; a receive may leave the source open.
"""

from bisect import insort
from collections.abc import Callable, Collection
from dataclasses import field
from typing import Protocol, TypeVar

from allhands.transport.early_calls import EarlyCalls, EarlyMessage
from allhands.transport.frame import Frame, FrameError, FrameKind, Header, MessageKey
from allhands.transport.outbox import EAGER_BUDGET, EAGER_BYTES, LONG_EAGER_BYTES
from allhands_proto.quick_dataclass import dataclass

_CREDIT_STEP = EAGER_BUDGET // 4
_MAX_TAKEN_BYTES = 128 << 10
"""Held of calls to come that are taken at once for calls which read links themselves."""
_MAX_TAKEN = 4
"""Messages without a receive that are taken for calls which read links themselves."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MessageMismatch:
    """The peer's message does not fit the posted receive."""

    peer: int
    key: MessageKey
    total: int
    signature: int = field(default=0, compare=False)


class PostedReceive:
    """A posted receive; owned by the waiting call until `done` is called.

    `land(offset, payload)` is called for each piece; the payload is valid only during the call, and
    begins and ends on multiples of `alignment` bytes. `room(offset, length)` may return the memory
    for a piece, to be written instead of calling `land`. `done(None)` reports that the whole
    message has arrived, `done(MessageMismatch)` that none of it was used. Up to `eager_bytes` its
    sender does not ask; None: `EAGER_BYTES`.
    """

    __slots__ = (
        "alignment",
        "done",
        "eager_bytes",
        "is_cancelled",
        "land",
        "missing",
        "order",
        "peer",
        "room",
        "signature",
        "source",
        "total",
    )

    def __init__(
        self,
        total: int,
        signature: int,
        land: Callable[[int, memoryview], None],
        done: Callable[[MessageMismatch | None], None],
        *,
        alignment: int = 1,
        room: Callable[[int, int], memoryview | None] | None = None,
        eager_bytes: int | None = None,
    ) -> None:
        self.total = total
        self.missing = total
        self.signature = signature
        self.land = land
        self.done = done
        self.alignment = alignment
        self.room = room
        self.eager_bytes = EAGER_BYTES if eager_bytes is None else eager_bytes
        self.is_cancelled = False
        self.peer = -1
        """Who sent it, once that is known."""
        self.source: int | None = None
        """Point to point: who may send it; None: anybody."""
        self.order = 0
        """Point to point: its place among the receives posted."""


class ControlSender(Protocol):
    """How the inbox answers a peer."""

    def __call__(self, peer: int, header: Header) -> None: ...


class Inbox:
    """Posted receives and early messages of one rank, over all its peers and groups."""

    def __init__(self, reply: ControlSender) -> None:
        self._reply = reply
        self._posted: dict[tuple[int, MessageKey], PostedReceive] = {}
        self._early = EarlyCalls()
        self.completed_calls: dict[int, int] = {}
        """The latest call of each group that has ended."""
        # Point to point, by (group, tag).
        self._p2p_early: dict[tuple[int, int], list[EarlyMessage]] = {}
        self._p2p_posted: dict[tuple[int, int], list[PostedReceive]] = {}
        self._posts = 0
        self._held_bytes: dict[int, int] = {}
        self._uncredited: dict[int, int] = {}
        self.p2p_counts: dict[tuple[int, int], int] = {}
        """Point to point: messages seen first, by (peer, group)."""

    def post(self, peer: int, key: MessageKey, incoming: PostedReceive) -> None:
        """Wait for a message of a collective."""
        incoming.peer = peer
        early = self._early.pop(peer, key)
        if early is not None:
            self._match(early, incoming)
            return
        self._posted[peer, key] = incoming
        if incoming.total > incoming.eager_bytes:
            self._send_cts(peer, key, incoming)

    def post_p2p(self, source: int | None, group: int, tag: int, incoming: PostedReceive) -> None:
        """Wait for a point-to-point message, from any source if it is None."""
        self._posts += 1
        incoming.source, incoming.order = source, self._posts
        self._match_or_post((group, tag), incoming)

    def cancel_receive(self, incoming: PostedReceive) -> None:
        """Cancel a receive whose call ended early; no data lands from now on."""
        incoming.is_cancelled = True
        for place in [place for place, posted in self._posted.items() if posted is incoming]:
            del self._posted[place]
        for tagged in [
            tagged for tagged, waiting in self._p2p_posted.items() if incoming in waiting
        ]:
            _remove(self._p2p_posted, tagged, incoming)

    def forget(self, group: int, sequence: int) -> None:
        """Drain messages of a group's calls up to `sequence`, present and late."""
        last, self.completed_calls[group] = self.completed_calls.get(group, 0), sequence
        for arrived in self._early.take_until(group, sequence, last):
            self._release_held(arrived.peer, arrived.nbytes)

    def has_early(self, group: int) -> bool:
        """Say whether messages of a group's calls have come that have not begun here."""
        return self._early.has_any(group)

    def limit_early(self, group: int, sequences: range) -> range:
        """Return those of some calls to come whose messages may be taken at once."""
        return self._early.limit(group, sequences, _MAX_TAKEN_BYTES)

    def take_early(
        self, group: int, sequences: range, peers: Collection[int]
    ) -> list[EarlyMessage] | None:
        """Take the messages of calls that came before these began, in their order.

        None: of some only the announcement has come, or it is not of one of `peers`; nothing was
        taken then.
        """
        found = self._early.take(group, sequences, peers)
        for arrived in found or ():
            self._held_bytes[arrived.peer] -= arrived.nbytes
        return found

    def take_early_messages(
        self, group: int, peers: Collection[int]
    ) -> dict[int, list[Frame]] | None:
        """Take the messages of a group that wait for a receive, by peer, as if they had not come.

        None: receives are posted, or it is not so few messages, all of them whole and of `peers`,
        that came last; nothing was taken then.
        """
        if any(tagged[0] == group for tagged in self._p2p_posted):
            return None
        early = [
            arrived
            for tagged, waiting in self._p2p_early.items()
            if tagged[0] == group
            for arrived in waiting
        ]
        if not early:
            return {}
        if len(early) > _MAX_TAKEN or any(arrived.peer not in peers for arrived in early):
            return None
        early.sort(key=lambda arrived: arrived.header.key.sequence)
        frames: dict[int, list[Frame]] = {}
        for arrived in early:
            here = [one.header.key.sequence for one in early if one.peer == arrived.peer]
            last = self.p2p_counts[arrived.peer, group]
            if here != list(range(last - len(here) + 1, last + 1)):
                return None
            if arrived.payload is None or arrived.header.length < arrived.header.total:
                return None
            payload = memoryview(arrived.payload)
            frames.setdefault(arrived.peer, []).append([arrived.header.pack(), payload])
        for arrived in early:
            _remove(self._p2p_early, (group, arrived.header.key.part), arrived)
            self.p2p_counts[arrived.peer, group] -= 1
            self._held_bytes[arrived.peer] -= arrived.nbytes
        return frames

    def return_credit(self, peer: int, nbytes: int) -> None:
        """Give room back to a peer whose messages were taken in elsewhere."""
        self._return_credit(peer, nbytes)

    def drop_unchecked(self, group: int) -> set[int]:
        """Drop early frames of a group without digests; return their senders."""
        early = [one for one in self._early.list_group(group) if not one.header.has_digest]
        queued = [
            (tagged, arrived)
            for tagged, waiting in self._p2p_early.items()
            for arrived in waiting
            if arrived.header.key.group == group and not arrived.header.has_digest
        ]
        for one in early:
            self._early.pop(one.peer, one.header.key)
        for tagged, arrived in queued:
            _remove(self._p2p_early, tagged, arrived)
        return {arrived.peer for arrived in (*early, *(one for _, one in queued))}

    def accept(self, peer: int, header: Header, payload: memoryview) -> None:
        """Take a DATA, ANNOUNCE or WITHDRAW frame.

        Raises:
            FrameError: the peer broke the protocol.
        """
        key = header.key
        posted = self._posted.get((peer, key))
        match header.kind:
            case FrameKind.DATA if posted is not None:
                self._land_piece(peer, header, payload, posted)
            case FrameKind.DATA if header.is_cleared:
                pass  # the rest of a message whose receive has been retracted
            case FrameKind.DATA:
                self._check_eager(peer, header)
                if header.offset:
                    self._keep_next_piece(peer, header, payload)
                else:
                    self._keep_early(peer, header, bytes(payload))
            case FrameKind.RTS if posted is not None:
                self._answer_rts(peer, header, posted)
            case FrameKind.RTS:
                self._keep_early(peer, header, None)
            case FrameKind.CANCEL:
                self._on_cancel(peer, key)
            case _:
                raise FrameError(f"frame of kind {header.kind.name} is not for the inbox")

    def open(self, peer: int, header: Header) -> "ReceiveSink | None":
        """Begin a DATA frame with payload to come; None: `accept` the whole frame later.

        Raises:
            FrameError: the peer broke the protocol.
        """
        posted = self._posted.get((peer, header.key))
        if posted is None:
            if header.is_cleared:
                return ReceiveSink(self, peer, header, None)
            self._check_eager(peer, header)
            return None
        unlike = _find_mismatch(peer, header, posted)
        if unlike is None:
            _check_offset(header, posted)
            return ReceiveSink(self, peer, header, posted)
        del self._posted[peer, header.key]
        posted.done(unlike)
        return ReceiveSink(self, peer, header, None)

    def credit_unused(self, peer: int, header: Header) -> None:
        """Return the credit of a received but unused frame."""
        if header.kind is FrameKind.DATA and not header.is_cleared:
            self._return_credit(peer, header.length)

    def finish_frame(self, peer: int, header: Header, posted: PostedReceive | None) -> None:
        """Account for a DATA frame after its payload; `posted` None: the payload was dropped."""
        if not header.is_cleared:
            self._return_credit(peer, header.length)
        if posted is None or posted.is_cancelled:
            return
        posted.missing -= header.length
        if posted.missing == 0:
            del self._posted[peer, header.key]
            posted.done(None)

    def _check_eager(self, peer: int, header: Header) -> None:
        """Check that a message without a posted receive may be sent eagerly."""
        is_whole = header.length == header.total <= EAGER_BYTES
        if not is_whole and (not header.key.is_p2p or header.total > LONG_EAGER_BYTES):
            raise FrameError(f"{header.total} bytes unasked, {header.length} of them here")
        if self._held_bytes.get(peer, 0) + header.length > EAGER_BUDGET:
            raise FrameError(f"more than {EAGER_BUDGET} bytes unasked")

    def _check_order(self, peer: int, key: MessageKey) -> None:
        """Check against loss, duplication and reordering of messages."""
        last = self.p2p_counts.get((peer, key.group), 0)
        if key.sequence != last + 1:
            raise FrameError(f"message {key.sequence} to a point came after message {last}")
        self.p2p_counts[peer, key.group] = key.sequence

    def _keep_early(self, peer: int, header: Header, payload: bytes | None) -> None:
        """Queue an early message."""
        if payload is not None:
            self._held_bytes[peer] = self._held_bytes.get(peer, 0) + len(payload)
        arrived = EarlyMessage(peer, header, payload)
        key = header.key
        if not key.is_p2p:
            if key.sequence <= self.completed_calls.get(key.group, 0):
                self._release_held(peer, len(payload or b""))
            else:
                self._early.add(arrived)
            return
        self._check_order(peer, key)
        tagged = (key.group, key.part)
        for incoming in self._p2p_posted.get(tagged, ()):
            if incoming.source is None or incoming.source == peer:
                _remove(self._p2p_posted, tagged, incoming)
                self._match(arrived, incoming)
                return
        self._p2p_early.setdefault(tagged, []).append(arrived)

    def _keep_next_piece(self, peer: int, header: Header, payload: memoryview) -> None:
        """Append a piece to the message to a point that it continues, if that is still wanted."""
        key = header.key
        if key.sequence > self.p2p_counts.get((peer, key.group), 0):
            raise FrameError(f"message {key.sequence} to a point goes on before it began")
        for arrived in self._p2p_early.get((key.group, key.part), ()):
            if arrived.peer == peer and arrived.header.key == key:
                if header.total != arrived.header.total or header.offset != arrived.nbytes:
                    raise FrameError(f"payload at {header.offset}, {arrived.nbytes} have come")
                if not isinstance(arrived.payload, bytearray):
                    arrived.payload = bytearray(arrived.payload or b"")
                arrived.payload += payload
                self._held_bytes[peer] += len(payload)
                return
        self._return_credit(peer, len(payload))

    def _match_or_post(self, tagged: tuple[int, int], incoming: PostedReceive) -> None:
        """Match a receive with the first fitting message, or queue the receive."""
        for arrived in self._p2p_early.get(tagged, ()):
            if incoming.source is None or incoming.source == arrived.peer:
                _remove(self._p2p_early, tagged, arrived)
                self._match(arrived, incoming)
                return
        insort(self._p2p_posted.setdefault(tagged, []), incoming, key=lambda one: one.order)

    def _match(self, arrived: EarlyMessage, incoming: PostedReceive) -> None:
        """Bring an arrived message and a receive together."""
        peer, header = arrived.peer, arrived.header
        incoming.peer = peer
        unlike = _find_mismatch(peer, header, incoming)
        if arrived.payload is not None:
            if unlike is None and arrived.payload:
                incoming.land(0, memoryview(arrived.payload))
            self._release_held(peer, len(arrived.payload))
            if unlike is None and not arrived.is_whole:
                incoming.missing -= len(arrived.payload)
                self._posted[peer, header.key] = incoming
                return
        elif unlike is None:
            self._posted[peer, header.key] = incoming
            self._send_cts(peer, header.key, incoming)
            return
        incoming.done(unlike)

    def _answer_rts(self, peer: int, header: Header, posted: PostedReceive) -> None:
        """Answer the RTS of a message with a posted receive by CTS."""
        if (unlike := _find_mismatch(peer, header, posted)) is not None:
            del self._posted[peer, header.key]
            posted.done(unlike)
        elif posted.total <= posted.eager_bytes:
            self._send_cts(peer, header.key, posted)  # larger ones were cleared when posted

    def _land_piece(
        self, peer: int, header: Header, payload: memoryview, posted: PostedReceive
    ) -> None:
        """Copy a piece of a message to the posted receive."""
        unlike = _find_mismatch(peer, header, posted)
        if unlike is not None:
            del self._posted[peer, header.key]
            posted.done(unlike)
            self.finish_frame(peer, header, None)
            return
        _check_offset(header, posted)
        if payload:
            posted.land(header.offset, payload)
        self.finish_frame(peer, header, posted)

    def _send_cts(self, peer: int, key: MessageKey, incoming: PostedReceive) -> None:
        self._reply(peer, Header(FrameKind.CTS, key, incoming.signature, incoming.total))

    def _on_cancel(self, peer: int, key: MessageKey) -> None:
        tagged = (key.group, key.part)
        for arrived in self._p2p_early.get(tagged, ()):
            if arrived.peer == peer and arrived.header.key == key:
                _remove(self._p2p_early, tagged, arrived)
                return
        posted = self._posted.pop((peer, key), None)
        if posted is not None:
            posted.missing = posted.total  # what has landed of it counts for nothing
            self._match_or_post(tagged, posted)

    def _release_held(self, peer: int, nbytes: int) -> None:
        """Release bytes of messages that were held without a posted receive."""
        if nbytes:
            self._held_bytes[peer] -= nbytes
            self._return_credit(peer, nbytes)

    def _return_credit(self, peer: int, nbytes: int) -> None:
        """Give room back to the sender, in steps worth a frame."""
        consumed = self._uncredited.get(peer, 0) + nbytes
        if consumed >= _CREDIT_STEP:
            self._reply(peer, Header(FrameKind.CREDIT, MessageKey(0, 0), 0, consumed))
            consumed = 0
        self._uncredited[peer] = consumed


class ReceiveSink:
    """Sink of a DATA frame's payload: the buffer of a posted receive, or discarded."""

    __slots__ = ("_header", "_inbox", "_offset", "_peer", "_posted")

    def __init__(
        self, inbox: Inbox, peer: int, header: Header, posted: PostedReceive | None
    ) -> None:
        self._inbox = inbox
        self._peer = peer
        self._header = header
        self._posted = posted
        self._offset = 0

    def room(self) -> memoryview | None:
        posted = self._posted
        if posted is None or posted.is_cancelled:
            return None
        if posted.room is None:
            return None
        return posted.room(self._header.offset + self._offset, self._header.length - self._offset)

    def filled(self, nbytes: int) -> None:
        self._offset += nbytes
        if self._offset == self._header.length:
            self._inbox.finish_frame(self._peer, self._header, self._posted)

    def feed(self, payload: memoryview) -> int:
        nbytes, posted = len(payload), self._posted
        if posted is not None and not posted.is_cancelled:
            nbytes -= (self._offset + nbytes) % posted.alignment  # frames begin on a multiple
            if nbytes:
                posted.land(self._header.offset + self._offset, payload[:nbytes])
        self.filled(nbytes)
        return nbytes


def _check_offset(header: Header, posted: PostedReceive) -> None:
    if header.offset != posted.total - posted.missing:
        raise FrameError(f"payload at {header.offset}, the message has come to another")
    if header.offset % posted.alignment or header.length % posted.alignment:
        raise FrameError(f"payload cut within an element of {posted.alignment} bytes")


def _remove(queues: dict[tuple[int, int], list[T]], tagged: tuple[int, int], one: T) -> None:
    """Remove an entry from the queue of a tag, and the queue once empty."""
    queues[tagged].remove(one)
    if not queues[tagged]:
        del queues[tagged]


def _find_mismatch(peer: int, header: Header, incoming: PostedReceive) -> MessageMismatch | None:
    if (header.signature, header.total) == (incoming.signature, incoming.total):
        return None
    return MessageMismatch(peer, header.key, header.total, header.signature)
