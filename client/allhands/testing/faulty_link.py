"""Links within one loop on which things go wrong as planned."""

import asyncio
import math

from allhands.testing.faulty_wire import Wires
from allhands.transport.frame import Frame, FrameError, whole
from allhands.transport.link import LinkBroken, Receiver, Unreachable

_DIAL_SECONDS = 10.0
"""For which a peer that does not answer is dialled."""


class FaultyBoard:
    """Who is there, and what is between them; shared by the fabrics of one world."""

    def __init__(self, wires: Wires) -> None:
        self.wires = wires
        self.fabrics: dict[int, FaultyFabric] = {}


class FaultyLink:
    """The way to one peer, over a wire of the plan."""

    def __init__(self, fabric: "FaultyFabric", peer: int) -> None:
        self._fabric = fabric
        self._peer = peer
        self._wire = fabric.board.wires.wire(fabric.rank, peer)
        self._is_closed = False
        self.broken: str | None = None

    def offer(self, frame: Frame) -> bool:
        if self._is_closed or self.broken is not None or self._wire.is_full:
            return False
        self._wire.put(whole(frame), self._deliver, self._cut)
        return True

    async def send(self, frame: Frame) -> None:
        while not self.offer(frame):
            if self._is_closed or self.broken is not None:
                raise LinkBroken(self.broken or "the link is closed")
            await self._wire.room()

    def let_go(self) -> None:
        """Nothing: frames are copied when they are taken."""

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self._wire.empty()
            if self.broken is not None:
                raise LinkBroken(self.broken)

    def abort(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._wire.clear()
            self._wire.tell(lambda: self._tell_receiver("its link was dropped"))

    def fail(self, reason: str) -> None:
        """Break the link, as seen from the sender."""
        if self.broken is None:
            self.broken = reason
            self._wire.clear()
            if not self._is_closed:
                self._fabric.receiver.broken(self._peer, reason)

    # ------------------------------------------------------------ inside

    def _deliver(self, frame: bytes) -> None:
        if self.broken is not None:
            return
        target = self._fabric.board.fabrics.get(self._peer)
        if target is None:
            self.fail("it went away")
            return
        try:
            target.receiver.accept(self._fabric.rank, frame)
        except FrameError as error:
            self.fail(f"protocol error: {error}")
            target.receiver.broken(self._fabric.rank, f"protocol error: {error}")

    def _cut(self) -> None:
        self._tell_receiver("the connection was cut")
        self.fail("the connection was cut")

    def _tell_receiver(self, reason: str) -> None:
        if (target := self._fabric.board.fabrics.get(self._peer)) is not None:
            target.receiver.broken(self._fabric.rank, reason)


class FaultyFabric:
    """The links of one rank under a plan."""

    def __init__(self, board: FaultyBoard, rank: int, receiver: Receiver) -> None:
        self.board = board
        self.rank = rank
        self.receiver = receiver
        self.links: dict[int, FaultyLink] = {}
        board.fabrics[rank] = self

    async def dial(self, peer: int) -> FaultyLink:
        await self._reach(peer)
        if peer not in self.board.fabrics or self.rank not in self.board.fabrics:
            raise Unreachable("it went away")
        self.links[peer] = FaultyLink(self, peer)
        return self.links[peer]

    def pump(self, seconds: float) -> bool:
        return False  # what is sent here comes by calls on the loop

    async def aclose(self) -> None:
        """Go away; peers with a link to or from this rank learn it, as far as anything passes."""
        if self.board.fabrics.pop(self.rank, None) is None:
            return
        for other in list(self.board.fabrics.values()):
            if (link := other.links.get(self.rank)) is not None:
                back = self.board.wires.wire(self.rank, other.rank)
                back.tell(lambda link=link: link.fail("it went away"))  # type: ignore[misc]
            if (mine := self.links.get(other.rank)) is not None:
                mine.abort()

    async def _reach(self, peer: int) -> None:
        """Return when something would come there and back."""
        wires = self.board.wires
        for way in ((self.rank, peer), (peer, self.rank)):
            now = wires.clock.now()
            wait = wires.plan.held_until(way, now) - now
            if wait > 0:
                await asyncio.sleep(min(wait, _DIAL_SECONDS))
            if wait > _DIAL_SECONDS or math.isinf(wait):
                raise Unreachable(f"it does not answer within {_DIAL_SECONDS:g} s")
