"""Links within one process and loop: ranks as objects, for threads-as-ranks and for tests.

The contract is that of a network: frames arrive later, in order, and a rank can go away.
"""

import asyncio

from allhands.transport.frame import Frame, FrameError, whole
from allhands.transport.link import LinkBroken, Receiver


class InprocNetwork:
    """Registered ranks of one world; shared by the fabrics."""

    def __init__(self) -> None:
        self.fabrics: dict[int, InprocFabric] = {}


class InprocLink:
    """A frame queue to one peer, drained by callbacks of the loop."""

    def __init__(self, fabric: "InprocFabric", peer: int) -> None:
        self._fabric = fabric
        self._peer = peer
        self._is_closed = False
        self.break_reason: str | None = None

    def offer(self, frame: Frame) -> bool:
        if self._is_closed or self.break_reason is not None:
            return False
        # Through the loop, as a network would: the receiver never runs inside the sender's call.
        asyncio.get_running_loop().call_soon(self._deliver, whole(frame))
        return True

    async def send(self, frame: Frame) -> None:
        if not self.offer(frame):
            raise LinkBroken(self.break_reason or "the link is closed")
        await asyncio.sleep(0)

    def let_go(self) -> None:
        """Do nothing: frames are copied when sent."""

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await asyncio.sleep(0)
            if self.break_reason is not None:
                raise LinkBroken(self.break_reason)

    def abort(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            target = self._fabric.network.fabrics.get(self._peer)
            if target is not None:
                target.receiver.broken(self._fabric.rank, "its link was dropped")

    def _deliver(self, frame: bytes) -> None:
        target = self._fabric.network.fabrics.get(self._peer)
        if target is None or self.break_reason is not None:
            self.fail("it went away")
            return
        try:
            target.receiver.accept(self._fabric.rank, frame)
        except FrameError as error:
            self.fail(f"protocol error: {error}")
            target.receiver.broken(self._fabric.rank, f"protocol error: {error}")

    def fail(self, reason: str) -> None:
        """Break the link, as seen from the sender."""
        if self.break_reason is None:
            self.break_reason = reason
            if not self._is_closed:
                self._fabric.receiver.broken(self._peer, reason)


class InprocFabric:
    """Links of one rank in an in-process network."""

    def __init__(self, network: InprocNetwork, rank: int, receiver: Receiver) -> None:
        self.network = network
        self.rank = rank
        self.receiver = receiver
        self.links: dict[int, InprocLink] = {}
        network.fabrics[rank] = self

    async def dial(self, peer: int) -> InprocLink:
        if peer not in self.network.fabrics:
            raise LinkBroken("it went away")
        self.links[peer] = InprocLink(self, peer)
        return self.links[peer]

    def pump(self, seconds: float) -> bool:
        return False  # what is sent here comes by calls on the loop

    async def aclose(self) -> None:
        """Leave the network; peers with a link to or from this rank are notified."""
        if self.network.fabrics.pop(self.rank, None) is None:
            return
        for other in self.network.fabrics.values():
            if (link := other.links.get(self.rank)) is not None:
                link.fail("it went away")
            if (mine := self.links.get(other.rank)) is not None:
                mine.abort()
