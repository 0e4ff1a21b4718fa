"""All the links of one rank: messages out, messages in, over whichever fabric carries them."""

import asyncio
import contextlib
import logging
import math
import struct
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from allhands.transport.checks import Checker, Inspector, LinkKey, Stamper
from allhands.transport.frame import (
    HEADER_BYTES,
    Frame,
    FrameError,
    Header,
    Key,
    Kind,
    unpack,
    unpack_header,
)
from allhands.transport.inbox import Inbox, Incoming
from allhands.transport.link import (
    Fabric,
    Gathering,
    Link,
    LinkBroken,
    Sink,
    Traced,
    Unanswered,
)
from allhands.transport.outbox import Outbox, Outgoing
from allhands.transport.roll_call import RollCall

logger = logging.getLogger(__name__)

_OF_CALLS = (Kind.DATA, Kind.CLEAR, Kind.ANNOUNCE, Kind.CALL)
"""Frames that carry the signature of the call which they belong to."""
_LINK = struct.Struct("<ii")


class Listener(Protocol):
    """Who is told what concerns calls as a whole; never called concurrently."""

    def refused(self, peer: int, key: Key, call: str) -> None:
        """`peer` made another call than this rank under that key, and says which."""

    def unlike(self, peer: int, key: Key) -> None:
        """A frame of `peer` belongs to another call than this rank's of that number."""

    def link_broken(self, peer: int, reason: str) -> None:
        """No more will come from `peer`, or go to it; said once for each peer."""

    def whereabouts(self) -> bytes:
        """Return what a pong says of this rank."""

    def ponged(self, peer: int, payload: bytes) -> None:
        """`peer` has answered a ping."""

    def told(self, peer: int, kind: Kind, key: Key, payload: bytes) -> None:
        """`peer` gives up a call, ends a group, or passes on what the coordinator says."""


class _Lane:
    """The way out to one peer: its outbox, and the task that empties it over a link."""

    def __init__(self, stamper: Stamper) -> None:
        self.outbox = Outbox(self.offer)
        self.stamper = stamper
        self.wake = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self.link: Link | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_over = False
        """Whether nothing goes any more, so that `drain` need not wait for it."""
        self.handed_over = -math.inf
        """When the link last made room for the next frame, on the monotonic clock."""

    def offer(self, frame: Frame) -> bool:
        return self.link is not None and self.stamper.offer(frame, self.link.offer)

    def end(self) -> None:
        self.is_over = True
        self.idle.set()

    def stir(self) -> None:
        """See to what the outbox has now."""
        if self.is_over:
            return
        if self.outbox.is_idle:
            self.idle.set()
            return
        self.idle.clear()
        if self.outbox.has_next:
            self.wake.set()


class Muster:
    """The peers that have not been heard in a call of this rank."""

    def __init__(self, missing: set[int], done: Callable[[], None]) -> None:
        self.missing = missing
        self.done = done


class Mesh:
    """Messages between this rank and its peers; a `Receiver` for its fabric.

    Links are dialled when first needed. Everything runs on one loop. `secret` is that of the job,
    for the digests of frames.
    """

    def __init__(self, listener: Listener, secret: bytes = b"", rank: int = 0) -> None:
        self._listener = listener
        self._fabric: Fabric | None = None
        self._lanes: dict[int, _Lane] = {}
        self._broken: dict[int, str] = {}
        self._parted: dict[int, asyncio.Task[None]] = {}
        self._counts: dict[tuple[int, int], int] = {}
        self._inbox = Inbox(self._reply)
        self._roll = RollCall()
        self._musters: dict[tuple[int, int], Muster] = {}
        self._askers: dict[tuple[int, int], set[int]] = {}
        """Peers that want to hear of a call, by group and number, when it begins here."""
        self._told: dict[tuple[int, int], set[int]] = {}
        """Peers that have heard of a call of this rank because it, or they, asked."""
        self._pinged: dict[int, float] = {}
        """Peers that have sent nothing since they were pinged, and when that was."""
        self._checkers: dict[int, Checker] = {}
        self._secret = secret
        self._rank = rank
        self._inspector = Inspector(self._checkers, lambda peer: LinkKey(secret, peer, rank))

    def attach(self, fabric: Fabric) -> None:
        """Give the mesh its network; before that nothing can be sent."""
        self._fabric = fabric

    # ------------------------------------------------------------ messages

    def send(self, peer: int, message: Outgoing) -> None:
        """Start a message; its `done` is called when its memory may be reused."""
        lane = self._lane(peer)
        if not lane.is_over:
            lane.outbox.push(message)
            lane.stir()

    def withdraw(self, peer: int, message: Outgoing) -> None:
        """Forget a message whose call ended early."""
        lane = self._lanes.get(peer)
        if lane is None:
            return
        if lane.link is not None and lane.outbox.is_given(message):
            lane.link.let_go()
        lane.outbox.withdraw(message)
        lane.stir()

    def next_count(self, peer: int, group: int) -> int:
        """Number the point-to-point messages to a peer."""
        count = self._counts.get((peer, group), 0) + 1
        self._counts[peer, group] = count
        return count

    def post(self, peer: int, key: Key, incoming: Incoming) -> None:
        """Wait for a message of a collective."""
        self._inbox.post(peer, key, incoming)

    def post_open(self, source: int | None, group: int, tag: int, incoming: Incoming) -> None:
        """Wait for a point-to-point message, from any source if it is None."""
        self._inbox.post_open(source, group, tag, incoming)

    def retract(self, incoming: Incoming) -> None:
        """Forget a receive whose call ended early."""
        self._inbox.retract(incoming)

    def refuse(self, peer: int, key: Key, call: str) -> None:
        """Tell a peer that this rank's call under that key is another one."""
        payload = call.encode()[:4096]
        header = Header(Kind.REFUSE, key, 0, 0, 0, len(payload))
        self._reply(peer, header, payload)

    def ping(self, peer: int, *, again: bool = False, dial: bool = True) -> None:
        """Ask a peer for a sign of life, unless it still owes one; `again`: even then.

        Without `dial` only where there is a link to it.
        """
        if (again or peer not in self._pinged) and (dial or peer in self._lanes):
            self._pinged.setdefault(peer, time.monotonic())
            self._reply(peer, Header(Kind.PING, Key(0, 0), 0, 0))

    def unanswered(self, seconds: float, *, behind_data: bool = False) -> dict[int, float]:
        """Return the peers from which nothing has come for so long since a ping: for how long.

        A ping that waits behind data is not taken for lost as long as the data gets on, unless
        `behind_data` asks for those too.
        """
        now = time.monotonic()
        silent = {}
        for peer, pinged in self._pinged.items():
            silence = now - pinged
            if silence >= seconds and not behind_data:
                silence = now - max(pinged, self._last_heard(peer))
            if silence >= seconds:
                silent[peer] = silence
        return dict(sorted(silent.items()))

    def forgive(self) -> None:
        """Give every peer that owes an answer the whole time for it anew."""
        self._pinged = dict.fromkeys(self._pinged, time.monotonic())

    def stop_pinging(self, peers: Iterable[int]) -> None:
        """Expect no more answers of these peers."""
        for peer in peers:
            self._pinged.pop(peer, None)

    @property
    def pinged(self) -> Collection[int]:
        """The peers that owe an answer to a ping."""
        return self._pinged.keys()

    def tell(self, peers: Iterable[int], kind: Kind, key: Key, payload: bytes, dial: bool) -> None:
        """Tell peers what concerns a whole call or group; those without a link only with `dial`."""
        for peer in peers:
            if dial or peer in self._lanes:
                self._reply(peer, Header(kind, key, 0, 0, 0, len(payload)), payload)

    def verify(self, group: int, checker: Checker) -> None:
        """Send the frames of a group with a digest, and take in none of it without."""
        if group not in self._checkers:
            for peer in self._inbox.drop_unchecked(group):
                reason = "it sent a frame without digest of a group that this rank wants verified"
                # Once the group is open: its calls fail by that.
                asyncio.get_running_loop().call_soon(self.broken, peer, reason)
        self._checkers[group] = checker

    def tell_corrupt(self, peer: int, key: Key, link: tuple[int, int]) -> None:
        """Tell a peer that data of a call was changed on a link of the world."""
        payload = _LINK.pack(*link)
        self._reply(peer, Header(Kind.CORRUPT, key, 0, 0, 0, len(payload)), payload)

    def begin(self, group: int, sequence: int, signature: int) -> bool:
        """Say which call of a group this rank is in; return whether peers are known in another."""
        is_other = not self._roll.begin(group, sequence, signature)
        if self._askers:
            for peer in self._askers.pop((group, sequence), ()):
                self._tell(peer, Key(group, sequence), signature)
        return is_other

    def declare(self, peer: int, key: Key, signature: int) -> None:
        """Tell a peer which call this rank is in, and waits for it in."""
        self._reply(peer, Header(Kind.CALL, key, signature, 0))

    def muster(
        self, key: Key, signature: int, peers: Sequence[int], done: Callable[[], None]
    ) -> Muster | None:
        """Hear from all peers that they are, or were, in the call which this rank begins.

        `done` is called then, not before this has returned; None: all have been heard already.
        """
        place = key.group, key.sequence
        missing = set(peers) - self._roll.met(*place)
        told = self._told.setdefault(place, set())
        for peer in peers:
            if peer in missing or peer not in told:
                self._reply(peer, Header(Kind.CALL, key, signature, peer in missing))
        told.update(peers)
        if not missing:
            return None
        self._musters[place] = Muster(missing, done)
        return self._musters[place]

    def excuse(self, key: Key, peer: int) -> None:
        """Do not wait any longer to hear a peer in a call."""
        muster = self._musters.get((key.group, key.sequence))
        if muster is not None:
            muster.missing.discard(peer)
            if not muster.missing:
                self.dismiss(key)
                muster.done()

    def dismiss(self, key: Key) -> None:
        """Forget whom a call wants to hear. Idempotent."""
        self._musters.pop((key.group, key.sequence), None)

    def conclude(self, group: int, sequence: int) -> None:
        """Say that calls of a group up to `sequence` are over here: late messages are drained."""
        self._inbox.forget(group, sequence)
        for lane in self._lanes.values():
            lane.outbox.forget(group, sequence)
        for kept in (self._askers, self._told):
            if kept:
                for place in [at for at in kept if at[0] == group and at[1] <= sequence]:
                    del kept[place]

    def pump(self, is_over: Callable[[], bool], seconds: float) -> None:
        """Take in what comes until `is_over` says so, or for so long, while the loop does not run.

        What cannot go out at once waits for the loop.
        """
        assert self._fabric is not None
        until = time.monotonic() + seconds
        while not is_over() and self._fabric.pump(until - time.monotonic()):
            pass

    # ------------------------------------------------------------ Receiver

    def accept(self, peer: int, frame: bytes | memoryview) -> None:
        if not self._inspector.passes(peer, frame):
            self._corrupted(peer, frame)
            return
        header = unpack(frame)
        if self._pinged:
            self._pinged.pop(peer, None)
        if header.kind in _OF_CALLS and not header.key.point_to_point:
            self._hear(peer, header)
        match header.kind:
            case Kind.DATA | Kind.ANNOUNCE | Kind.WITHDRAW:
                self._inbox.accept(peer, header, memoryview(frame)[HEADER_BYTES:])
            case Kind.CLEAR:
                lane = self._lane(peer)
                if not lane.is_over:
                    lane.outbox.cleared(header)
                    lane.stir()
            case Kind.CREDIT:
                self._lane(peer).outbox.credit(header.total)
            case Kind.REFUSE:
                text = bytes(frame[HEADER_BYTES:]).decode(errors="replace")
                self._listener.refused(peer, header.key, text)
            case Kind.CALL:
                if header.total:  # it wants to hear from this rank as well
                    self._asked(peer, header)
            case Kind.PING:
                said = self._listener.whereabouts()
                self._reply(peer, Header(Kind.PONG, Key(0, 0), 0, 0, 0, len(said)), said)
            case Kind.PONG:
                self._listener.ponged(peer, bytes(frame[HEADER_BYTES:]))
            case Kind.GIVE_UP | Kind.ABORT | Kind.RELAY:
                self._listener.told(peer, header.kind, header.key, bytes(frame[HEADER_BYTES:]))
            case Kind.CORRUPT:
                self._hear_corrupt(peer, header, frame[HEADER_BYTES:])
            case Kind.BYE:
                raise FrameError("the end of a link is for its fabric")

    def open(self, peer: int, header: bytes) -> Sink:
        begun = unpack_header(header)
        if self._pinged:
            self._pinged.pop(peer, None)
        if begun.checked:  # nothing of it is used before all of it has been looked at
            return Gathering(header, begun.length, lambda frame: self.accept(peer, frame))
        if not begun.key.point_to_point:
            self._hear(peer, begun)
        arrival = self._inbox.open(peer, begun)
        if arrival is not None:
            return arrival

        def whole(frame: memoryview) -> None:
            self._inbox.accept(peer, begun, frame[HEADER_BYTES:])

        return Gathering(header, begun.length, whole)

    def broken(self, peer: int, reason: str) -> None:
        if peer not in self._broken:
            self._broken[peer] = reason
            self._listener.link_broken(peer, reason)

    # ------------------------------------------------------------ life

    async def drain(self) -> None:
        """Return when every peer has taken in all that was sent; links are closed then.

        A link that breaks meanwhile has nothing more to drain.
        """
        await asyncio.gather(*(self._drain(peer, lane) for peer, lane in self._lanes.items()))

    def part(self, peer: int) -> None:
        """Close the link to a peer that has left: it waits for that before it goes."""
        lane = self._lanes.get(peer)
        if lane is not None and lane.task is not None and peer not in self._parted:
            lane.task.cancel()
            lane.end()  # what is still queued is for nobody
            self._parted[peer] = asyncio.create_task(self._part(lane), name=f"part from {peer}")

    async def aclose(self) -> None:
        """Drop all links. Idempotent."""
        lanes = list(self._lanes.values())
        tasks = [lane.task for lane in lanes if lane.task is not None]
        tasks += self._parted.values()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for lane in lanes:
            if lane.link is not None:
                lane.link.abort()
        self._lanes.clear()
        if self._fabric is not None:
            await self._fabric.aclose()

    # ------------------------------------------------------------ inside

    def _last_heard(self, peer: int) -> float:
        """Return when the link to a peer last got on, as far as anybody can tell."""
        heard = self._fabric.last_heard(peer) if isinstance(self._fabric, Traced) else -math.inf
        return self._lane(peer).handed_over if heard == -math.inf else heard

    def _hear(self, peer: int, header: Header) -> None:
        key = header.key
        if not self._roll.hear(peer, key.group, key.sequence, header.signature):
            self._listener.unlike(peer, key)
        elif self._musters:
            self.excuse(key, peer)

    def _asked(self, peer: int, header: Header) -> None:
        """Say which call this rank is in, now or as soon as it is."""
        group, sequence = header.key.group, header.key.sequence
        signature = self._roll.mine(group, sequence)
        if signature is None and self._roll.is_past(group, sequence):
            signature = header.signature  # so long ago that nobody knows what it was
        if signature is None:
            self._askers.setdefault((group, sequence), set()).add(peer)
        elif peer not in self._told.get((group, sequence), ()):
            self._tell(peer, header.key, signature)

    def _tell(self, peer: int, key: Key, signature: int) -> None:
        self._told.setdefault((key.group, key.sequence), set()).add(peer)
        self._reply(peer, Header(Kind.CALL, key, signature, 0))

    def _corrupted(self, peer: int, frame: bytes | memoryview) -> None:
        """Let the group have it that a frame probably belongs to, or break the link."""
        try:
            header = unpack(frame)
        except FrameError as error:
            raise FrameError(f"a frame was changed on its way (digest): {error}") from error
        checker = self._checkers.get(header.key.group)
        if checker is None or header.key.point_to_point:
            # Nobody could tell which message has gone, and the next would take its place.
            raise FrameError("a frame was changed on its way (digest)")
        checker.corrupted(peer, header.key)
        self._inbox.passed_over(peer, header)

    def _hear_corrupt(self, peer: int, header: Header, payload: bytes | memoryview) -> None:
        if len(payload) != _LINK.size:
            raise FrameError(f"{len(payload)} bytes name no link")
        checker = self._checkers.get(header.key.group)
        if checker is not None:
            start, end = _LINK.unpack(payload)
            checker.told(peer, header.key, (start, end))

    def _reply(self, peer: int, header: Header, payload: bytes = b"") -> None:
        lane = self._lane(peer)
        if not lane.is_over:
            lane.outbox.push_control(header, payload)
            lane.stir()

    def _lane(self, peer: int) -> _Lane:
        """Return the way out to a peer, which is dialled when it is first needed."""
        lane = self._lanes.get(peer)
        if lane is None:
            lane = self._lanes[peer] = _Lane(
                Stamper(self._checkers, LinkKey(self._secret, self._rank, peer))
            )
            lane.task = asyncio.create_task(self._carry(peer, lane), name=f"link to rank {peer}")
        return lane

    async def _carry(self, peer: int, lane: _Lane) -> None:
        """Dial the peer, then put out what its outbox gives, until the link breaks."""
        try:
            lane.link = await self._dial(peer)
            while True:
                frame = lane.outbox.next_frame()
                if frame is not None:
                    await lane.link.send(lane.stamper.next(frame))
                    lane.handed_over = time.monotonic()
                    lane.outbox.taken()
                    await asyncio.sleep(0)  # others want their turn, above all who reads
                    continue
                lane.stir()
                lane.wake.clear()
                await lane.wake.wait()
        except LinkBroken as error:
            lane.end()
            self.broken(peer, str(error))

    async def _dial(self, peer: int) -> Link:
        """Open the link to a peer; again where its process is held up: that is not lost."""
        assert self._fabric is not None
        while True:
            try:
                return await self._fabric.dial(peer)
            except Unanswered as error:
                logger.info("the link to rank %d is tried again: %s", peer, error)

    async def _drain(self, peer: int, lane: _Lane) -> None:
        await lane.idle.wait()
        if lane.link is None or peer in self._broken:
            return
        try:
            await lane.link.close()
        except LinkBroken as error:
            logger.debug("link to rank %d broke while closing: %s", peer, error)

    async def _part(self, lane: _Lane) -> None:
        if lane.link is not None:
            with contextlib.suppress(LinkBroken):
                await lane.link.close()
