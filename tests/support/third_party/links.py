"""Links as calls on the loop, written from the docstrings of `Link` alone, and broken variants."""

import asyncio

from allhands.testing.conformance import (
    Frame,
    FrameError,
    LinkBroken,
    Receiver,
    Unreachable,
    whole,
)


class LoopFabric:
    """The links of a rank to peers on the same loop."""

    def __init__(
        self,
        world: dict[int, "LoopFabric"],
        rank: int,
        receiver: Receiver,
        kind: "type[LoopLink] | None" = None,
    ) -> None:
        self.world, self.rank, self.receiver = world, rank, receiver
        self.kind = kind or LoopLink
        self.links: dict[int, LoopLink] = {}
        world[rank] = self

    async def dial(self, peer: int) -> "LoopLink":
        if peer not in self.world:
            raise Unreachable("nobody is there")
        self.links[peer] = self.kind(self, peer)
        return self.links[peer]

    def pump(self, seconds: float) -> bool:
        return False

    async def aclose(self) -> None:
        if self.world.pop(self.rank, None) is None:
            return
        for other in self.world.values():
            if self.rank in other.links:
                other.links[self.rank].breaks("it went away")


class LoopLink:
    """Frames to a peer on the same loop."""

    def __init__(self, fabric: LoopFabric, peer: int) -> None:
        self.fabric, self.peer = fabric, peer
        self.over: str | None = None
        self.underway = 0
        self.idle = asyncio.Event()

    def offer(self, frame: Frame) -> bool:
        if self.over:
            return False
        self.underway += 1
        self.idle.clear()
        self.schedule(whole(frame))
        return True

    def schedule(self, frame: bytes) -> None:
        asyncio.get_running_loop().call_soon(self.deliver, frame)

    async def send(self, frame: Frame) -> None:
        if not self.offer(frame):
            raise LinkBroken(self.over)

    def let_go(self) -> None:
        pass

    async def close(self) -> None:
        if self.underway:
            await self.idle.wait()
        self.over = self.over or "closed"

    def abort(self) -> None:
        if self.over is None:
            self.over = "dropped"
            self.target().broken(self.fabric.rank, "dropped")

    def target(self) -> Receiver:
        return self.fabric.world[self.peer].receiver

    def deliver(self, frame: bytes) -> None:
        self.underway -= 1
        if not self.underway:
            self.idle.set()
        if self.over:
            return
        try:
            self.target().accept(self.fabric.rank, frame)
        except FrameError as error:
            self.target().broken(self.fabric.rank, f"protocol error: {error}")
            self.breaks(f"protocol error: {error}")

    def breaks(self, reason: str) -> None:
        if self.over is None:
            self.over = reason
            self.fabric.receiver.broken(self.peer, reason)


class ReorderingLink(LoopLink):
    """A link that delivers every second frame late."""

    def schedule(self, frame: bytes) -> None:
        late = 0.02 if self.underway % 2 else 0
        asyncio.get_running_loop().call_later(late, self.deliver, frame)


class HastyLink(LoopLink):
    """A link whose `close` does not wait for frames under way."""

    async def close(self) -> None:
        self.over = self.over or "closed"


class SilentLink(LoopLink):
    """A link whose `abort` does not reach the receiver."""

    def abort(self) -> None:
        pass
