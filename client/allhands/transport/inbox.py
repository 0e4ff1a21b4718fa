"""What peers send, matched with what this rank waits for. Pure: no loop, no socket.

Messages of collectives are matched by key: both ends know it beforehand. Point-to-point messages
are matched as MPI has it: in the order sent, with the first receive posted that fits source and
tag; a receive may leave the source open.
"""

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from allhands.transport.frame import FrameError, Header, Key, Kind
from allhands.transport.outbox import EAGER_BUDGET, unasked

_CREDIT_STEP = EAGER_BUDGET // 4

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unlike:
    """The peer's message is not the one that this receive is for."""

    peer: int
    key: Key
    total: int
    signature: int = field(default=0, compare=False)


class Incoming:
    """A posted receive; owned by the call that waits for it until `done` is called.

    `land(offset, payload)` is called for each piece; the payload is valid only during the call, and
    begins and ends on multiples of `grain` bytes. `room(offset, length)` may give the memory where
    a piece belongs as it is, to be written in place of that call. `done(None)` says that everything
    has landed, `done(Unlike)` that nothing has.
    """

    __slots__ = (
        "done",
        "grain",
        "is_retracted",
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
        done: Callable[[Unlike | None], None],
        *,
        grain: int = 1,
        room: Callable[[int, int], memoryview | None] | None = None,
    ) -> None:
        self.total = total
        self.missing = total
        self.signature = signature
        self.land = land
        self.done = done
        self.grain = grain
        self.room = room
        self.is_retracted = False
        self.peer = -1
        """Who sent it, once that is known."""
        self.source: int | None = None
        """Point to point: who may send it; None: anybody."""
        self.order = 0
        """Point to point: its place among the receives posted."""


class Replies(Protocol):
    """How the inbox answers a peer."""

    def __call__(self, peer: int, header: Header) -> None: ...


@dataclass(slots=True, eq=False)
class _Arrived:
    """A message nobody has posted a receive for yet; no payload when only announced."""

    peer: int
    header: Header
    payload: bytes | None


class Inbox:
    """Posted receives and early messages of one rank, over all its peers and groups."""

    def __init__(self, reply: Replies) -> None:
        self._reply = reply
        self._posted: dict[tuple[int, Key], Incoming] = {}
        self._early: dict[tuple[int, Key], _Arrived] = {}
        self._over: dict[int, int] = {}
        # Point to point, by (group, tag).
        self._queues: dict[tuple[int, int], list[_Arrived]] = {}
        self._open: dict[tuple[int, int], list[Incoming]] = {}
        self._posts = 0
        self._held: dict[int, int] = {}
        self._consumed: dict[int, int] = {}
        self._counts: dict[tuple[int, int], int] = {}
        """Point to point: messages seen first, by (peer, group)."""

    def post(self, peer: int, key: Key, incoming: Incoming) -> None:
        """Wait for a message of a collective."""
        incoming.peer = peer
        early = self._early.pop((peer, key), None)
        if early is not None:
            self._match(early, incoming)
            return
        self._posted[peer, key] = incoming
        if incoming.total > unasked(key):
            self._clear(peer, key, incoming)

    def post_open(self, source: int | None, group: int, tag: int, incoming: Incoming) -> None:
        """Wait for a point-to-point message, from any source if it is None."""
        self._posts += 1
        incoming.source, incoming.order = source, self._posts
        self._seek((group, tag), incoming)

    def retract(self, incoming: Incoming) -> None:
        """Forget a receive whose call ended early; nothing lands from now on."""
        incoming.is_retracted = True
        for place in [place for place, posted in self._posted.items() if posted is incoming]:
            del self._posted[place]
        for tagged in [tagged for tagged, waiting in self._open.items() if incoming in waiting]:
            _remove(self._open, tagged, incoming)

    def forget(self, group: int, sequence: int) -> None:
        """Drain what belongs to calls of a group up to `sequence`, now and when it comes late."""
        self._over[group] = sequence
        stale = [
            (peer, key)
            for peer, key in self._early
            if key.group == group and key.sequence <= sequence
        ]
        for place in stale:
            arrived = self._early.pop(place)
            self._release(arrived.peer, len(arrived.payload or b""))

    def drop_unchecked(self, group: int) -> set[int]:
        """Drop what came of a group without a digest before it was opened; return from whom."""
        early = [
            (place, arrived)
            for place, arrived in self._early.items()
            if arrived.header.key.group == group and not arrived.header.checked
        ]
        queued = [
            (tagged, arrived)
            for tagged, waiting in self._queues.items()
            for arrived in waiting
            if arrived.header.key.group == group and not arrived.header.checked
        ]
        for place, _ in early:
            del self._early[place]
        for tagged, arrived in queued:
            _remove(self._queues, tagged, arrived)
        return {arrived.peer for _, arrived in (*early, *queued)}

    def accept(self, peer: int, header: Header, payload: memoryview) -> None:
        """Take a DATA, ANNOUNCE or WITHDRAW frame.

        Raises:
            FrameError: the peer broke the protocol.
        """
        key = header.key
        posted = self._posted.get((peer, key))
        match header.kind:
            case Kind.DATA if posted is not None:
                self._take(peer, header, payload, posted)
            case Kind.DATA if header.asked:
                pass  # the rest of a message whose receive has been retracted
            case Kind.DATA:
                self._check_unasked(peer, header)
                self._hold(peer, header, bytes(payload))
            case Kind.ANNOUNCE if posted is not None:
                self._promise(peer, header, posted)
            case Kind.ANNOUNCE:
                self._hold(peer, header, None)
            case Kind.WITHDRAW:
                self._withdrawn(peer, key)
            case _:
                raise FrameError(f"frame of kind {header.kind.name} is not for the inbox")

    def open(self, peer: int, header: Header) -> "Arrival | None":
        """Begin a DATA frame whose payload is still to come; None: `accept` it when it is whole.

        Raises:
            FrameError: the peer broke the protocol.
        """
        posted = self._posted.get((peer, header.key))
        if posted is None:
            if header.asked:
                return Arrival(self, peer, header, None)
            self._check_unasked(peer, header)
            return None
        unlike = _unlike(peer, header, posted)
        if unlike is None:
            _check_offset(header, posted)
            return Arrival(self, peer, header, posted)
        del self._posted[peer, header.key]
        posted.done(unlike)
        return Arrival(self, peer, header, None)

    def passed_over(self, peer: int, header: Header) -> None:
        """Give back the room of a frame that came and is not used."""
        if header.kind is Kind.DATA and not header.asked:
            self._credit(peer, header.length)

    def landed(self, peer: int, header: Header, posted: Incoming | None) -> None:
        """Settle a DATA frame whose payload is where it belongs; None: it belonged nowhere."""
        if not header.asked:
            self._credit(peer, header.length)
        if posted is None or posted.is_retracted:
            return
        posted.missing -= header.length
        if posted.missing == 0:
            del self._posted[peer, header.key]
            posted.done(None)

    # ------------------------------------------------------------ inside

    def _check_unasked(self, peer: int, header: Header) -> None:
        """Check that a message nobody asked for is one that may come so."""
        if header.length < header.total or header.total > unasked(header.key):
            raise FrameError(f"{header.total} bytes unasked, {header.length} of them here")
        if self._held.get(peer, 0) + header.length > EAGER_BUDGET:
            raise FrameError(f"more than {EAGER_BUDGET} bytes unasked")

    def _check_turn(self, peer: int, key: Key) -> None:
        """Check that none was lost, came twice or was overtaken: it would pass for another."""
        last = self._counts.get((peer, key.group), 0)
        if key.sequence != last + 1:
            raise FrameError(f"message {key.sequence} to a point came after message {last}")
        self._counts[peer, key.group] = key.sequence

    def _hold(self, peer: int, header: Header, payload: bytes | None) -> None:
        """Find a place for the first sight of a message nobody has named beforehand."""
        if payload is not None:
            self._held[peer] = self._held.get(peer, 0) + len(payload)
        arrived = _Arrived(peer, header, payload)
        key = header.key
        if not key.point_to_point:
            if key.sequence <= self._over.get(key.group, 0):
                self._release(peer, len(payload or b""))
            else:
                self._early[peer, key] = arrived
            return
        self._check_turn(peer, key)
        tagged = (key.group, key.part)
        for incoming in self._open.get(tagged, ()):
            if incoming.source is None or incoming.source == peer:
                _remove(self._open, tagged, incoming)
                self._match(arrived, incoming)
                return
        self._queues.setdefault(tagged, []).append(arrived)

    def _seek(self, tagged: tuple[int, int], incoming: Incoming) -> None:
        """Give a receive the first message that fits, or its place in the line of those open."""
        for arrived in self._queues.get(tagged, ()):
            if incoming.source is None or incoming.source == arrived.peer:
                _remove(self._queues, tagged, arrived)
                self._match(arrived, incoming)
                return
        insort(self._open.setdefault(tagged, []), incoming, key=lambda one: one.order)

    def _match(self, arrived: _Arrived, incoming: Incoming) -> None:
        """Bring an arrived message and a receive together."""
        peer, header = arrived.peer, arrived.header
        incoming.peer = peer
        unlike = _unlike(peer, header, incoming)
        if arrived.payload is not None:
            if unlike is None and arrived.payload:
                incoming.land(0, memoryview(arrived.payload))
            self._release(peer, len(arrived.payload))
        elif unlike is None:
            self._posted[peer, header.key] = incoming
            self._clear(peer, header.key, incoming)
            return
        incoming.done(unlike)

    def _promise(self, peer: int, header: Header, posted: Incoming) -> None:
        """Answer the announcement of a message that a posted receive is for."""
        if (unlike := _unlike(peer, header, posted)) is not None:
            del self._posted[peer, header.key]
            posted.done(unlike)
        elif posted.total <= unasked(header.key):
            self._clear(peer, header.key, posted)  # larger ones were cleared when posted

    def _take(self, peer: int, header: Header, payload: memoryview, posted: Incoming) -> None:
        """Land a piece of a message that a posted receive is for."""
        unlike = _unlike(peer, header, posted)
        if unlike is not None:
            del self._posted[peer, header.key]
            posted.done(unlike)
            self.landed(peer, header, None)
            return
        _check_offset(header, posted)
        if payload:
            posted.land(header.offset, payload)
        self.landed(peer, header, posted)

    def _clear(self, peer: int, key: Key, incoming: Incoming) -> None:
        self._reply(peer, Header(Kind.CLEAR, key, incoming.signature, incoming.total))

    def _withdrawn(self, peer: int, key: Key) -> None:
        tagged = (key.group, key.part)
        for arrived in self._queues.get(tagged, ()):
            if arrived.peer == peer and arrived.header.key == key:
                _remove(self._queues, tagged, arrived)
                return
        posted = self._posted.pop((peer, key), None)
        if posted is not None:
            posted.missing = posted.total  # what has landed of it counts for nothing
            self._seek(tagged, posted)

    def _release(self, peer: int, nbytes: int) -> None:
        """Let go of bytes that were held for want of a receive."""
        if nbytes:
            self._held[peer] -= nbytes
            self._credit(peer, nbytes)

    def _credit(self, peer: int, nbytes: int) -> None:
        """Give room back to the sender, in steps worth a frame."""
        consumed = self._consumed.get(peer, 0) + nbytes
        if consumed >= _CREDIT_STEP:
            self._reply(peer, Header(Kind.CREDIT, Key(0, 0), 0, consumed))
            consumed = 0
        self._consumed[peer] = consumed


class Arrival:
    """The payload of one DATA frame on its way to a posted receive, or to nobody: a `Sink`."""

    __slots__ = ("_at", "_header", "_inbox", "_peer", "_posted")

    def __init__(self, inbox: Inbox, peer: int, header: Header, posted: Incoming | None) -> None:
        self._inbox = inbox
        self._peer = peer
        self._header = header
        self._posted = posted
        self._at = 0

    def room(self) -> memoryview | None:
        posted = self._posted
        if posted is None or posted.is_retracted:
            return None
        if posted.room is None:
            return None
        return posted.room(self._header.offset + self._at, self._header.length - self._at)

    def filled(self, nbytes: int) -> None:
        self._at += nbytes
        if self._at == self._header.length:
            self._inbox.landed(self._peer, self._header, self._posted)

    def feed(self, payload: memoryview) -> int:
        nbytes, posted = len(payload), self._posted
        if posted is not None and not posted.is_retracted:
            nbytes -= (self._at + nbytes) % posted.grain  # frames begin on a multiple
            if nbytes:
                posted.land(self._header.offset + self._at, payload[:nbytes])
        self.filled(nbytes)
        return nbytes


def _check_offset(header: Header, posted: Incoming) -> None:
    if header.offset != posted.total - posted.missing:
        raise FrameError(f"payload at {header.offset}, the message has come to another")
    if header.offset % posted.grain or header.length % posted.grain:
        raise FrameError(f"payload cut within an element of {posted.grain} bytes")


def _remove(lines: dict[tuple[int, int], list[T]], tagged: tuple[int, int], one: T) -> None:
    """Take one out of the line of its tag; no empty line stays."""
    lines[tagged].remove(one)
    if not lines[tagged]:
        del lines[tagged]


def _unlike(peer: int, header: Header, incoming: Incoming) -> Unlike | None:
    if (header.signature, header.total) == (incoming.signature, incoming.total):
        return None
    return Unlike(peer, header.key, header.total, header.signature)
