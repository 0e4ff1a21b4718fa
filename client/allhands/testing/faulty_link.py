"""Links within one loop under a plan of faults."""

import asyncio
import math

from allhands.testing.faulty_channel import FaultyChannels
from allhands.transport.frame import Frame, FrameError, whole
from allhands.transport.link import LinkBroken, Receiver, Unreachable

_DIAL_SECONDS = 10.0
"""For which a peer that does not answer is dialled."""


class FaultyNetwork:
    """Ranks and channels of one world; shared by the fabrics."""

    def __init__(self, channels: FaultyChannels) -> None:
        self.channels = channels
        self.fabrics: dict[int, FaultyFabric] = {}


class FaultyLink:
    """Link to one peer, over a channel of the plan."""

    def __init__(self, fabric: "FaultyFabric", peer: int) -> None:
        self._fabric = fabric
        self._peer = peer
        self._channel = fabric.network.channels.get_channel(fabric.rank, peer)
        self._is_closed = False
        self.break_reason: str | None = None

    def offer(self, frame: Frame) -> bool:
        if self._is_closed or self.break_reason is not None or self._channel.is_full:
            return False
        self._channel.put(whole(frame), self._deliver, self._cut)
        return True

    async def send(self, frame: Frame) -> None:
        while not self.offer(frame):
            if self._is_closed or self.break_reason is not None:
                raise LinkBroken(self.break_reason or "the link is closed")
            await self._channel.wait_room()

    def let_go(self) -> None:
        """Do nothing: frames are copied when sent."""

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self._channel.wait_empty()
            if self.break_reason is not None:
                raise LinkBroken(self.break_reason)

    def abort(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._channel.clear()
            self._channel.run_at_receiver(lambda: self._break_at_receiver("its link was dropped"))

    def fail(self, reason: str) -> None:
        """Break the link, as seen from the sender."""
        if self.break_reason is None:
            self.break_reason = reason
            self._channel.clear()
            if not self._is_closed:
                self._fabric.receiver.broken(self._peer, reason)

    def _deliver(self, frame: bytes) -> None:
        if self.break_reason is not None:
            return
        target = self._fabric.network.fabrics.get(self._peer)
        if target is None:
            self.fail("it went away")
            return
        try:
            target.receiver.accept(self._fabric.rank, frame)
        except FrameError as error:
            self.fail(f"protocol error: {error}")
            target.receiver.broken(self._fabric.rank, f"protocol error: {error}")

    def _cut(self) -> None:
        self._break_at_receiver("the connection was cut")
        self.fail("the connection was cut")

    def _break_at_receiver(self, reason: str) -> None:
        if (target := self._fabric.network.fabrics.get(self._peer)) is not None:
            target.receiver.broken(self._fabric.rank, reason)


class FaultyFabric:
    """The links of one rank under a plan."""

    def __init__(self, network: FaultyNetwork, rank: int, receiver: Receiver) -> None:
        self.network = network
        self.rank = rank
        self.receiver = receiver
        self.links: dict[int, FaultyLink] = {}
        network.fabrics[rank] = self

    async def dial(self, peer: int) -> FaultyLink:
        await self._wait_reachable(peer)
        if peer not in self.network.fabrics or self.rank not in self.network.fabrics:
            raise Unreachable("it went away")
        self.links[peer] = FaultyLink(self, peer)
        return self.links[peer]

    def pump(self, seconds: float) -> bool:
        return False  # what is sent here comes by calls on the loop

    async def aclose(self) -> None:
        """Go away; peers with a link to or from this rank learn it, as far as anything passes."""
        if self.network.fabrics.pop(self.rank, None) is None:
            return
        for other in list(self.network.fabrics.values()):
            if (link := other.links.get(self.rank)) is not None:
                back = self.network.channels.get_channel(self.rank, other.rank)
                back.run_at_receiver(lambda link=link: link.fail("it went away"))  # type: ignore[misc]
            if (mine := self.links.get(other.rank)) is not None:
                mine.abort()

    async def _wait_reachable(self, peer: int) -> None:
        """Return when something would come there and back."""
        wires = self.network.channels
        for way in ((self.rank, peer), (peer, self.rank)):
            now = wires.clock.now()
            wait = wires.plan.held_until(way, now) - now
            if wait > 0:
                await asyncio.sleep(min(wait, _DIAL_SECONDS))
            if wait > _DIAL_SECONDS or math.isinf(wait):
                raise Unreachable(f"it does not answer within {_DIAL_SECONDS:g} s")
