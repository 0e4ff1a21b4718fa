"""Meshes of several ranks over raw sockets without encryption, whose links can be lent."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from allhands.transport.frame import FrameKind, MessageKey
from allhands.transport.handshake import Identity
from allhands.transport.lent_links import LentLinks
from allhands.transport.mesh import Mesh
from allhands.transport.outbox import EAGER_BUDGET
from allhands.transport.socket_stream import HostPort, SocketFabric, SocketListener
from support.async_poll import poll_async

_PATIENCE = 10.0


class Events:
    """What a mesh reports."""

    def __init__(self) -> None:
        self.mismatches: list[int] = []
        self.breaks: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
        self.pongs: list[int] = []

    def on_nack(self, peer: int, key: MessageKey, call: str) -> None: ...

    def on_mismatch(self, peer: int, key: MessageKey) -> None:
        self.mismatches.append(peer)

    def on_link_broken(self, peer: int, reason: str) -> None:
        self.breaks.put_nowait((peer, reason))

    def pong_payload(self) -> bytes:
        return b""

    def on_pong(self, peer: int, payload: bytes) -> None:
        self.pongs.append(peer)

    def on_control(self, peer: int, kind: FrameKind, key: MessageKey, payload: bytes) -> None: ...


class MeshRank:
    """One rank of a world; made, and used, on its event loop."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.events = Events()
        self.mesh = Mesh(self.events, rank=rank)
        self.port = SocketListener()
        self.port.encrypts = False
        self.port.start("127.0.0.1")

    def attach(self, addresses: Mapping[int, HostPort]) -> None:
        me = Identity("job", "incarnation", b"s" * 32, f"member-{self.rank}", self.rank, self.size)
        self.fabric = SocketFabric(self.port, me, addresses, self.mesh)
        self.mesh.attach(self.fabric)

    @property
    def links(self) -> LentLinks:
        assert self.mesh.lent_links is not None
        return self.mesh.lent_links

    async def connect(self) -> None:
        """Have links to all others, and from them."""
        others = [peer for peer in range(self.size) if peer != self.rank]
        for peer in others:
            self.mesh.ping(peer)

        async def are_linked() -> bool:
            return len(self.events.pongs) == len(others) and all(
                self.links.get_state(peer) is not None and self.links.is_lendable(peer)
                for peer in others
            )

        await poll_async(are_linked, _PATIENCE)


def address_of(one: MeshRank) -> HostPort:
    return "127.0.0.1", one.port.port


@asynccontextmanager
async def socket_meshes(size: int) -> AsyncIterator[list[MeshRank]]:
    """Give the ranks of a world, all on this loop."""
    ranks = [MeshRank(rank, size) for rank in range(size)]
    for one in ranks:
        one.attach({other.rank: address_of(other) for other in ranks})
    try:
        await asyncio.gather(*(one.connect() for one in ranks))
        yield ranks
    finally:
        for one in ranks:
            await one.mesh.aclose()


async def wait_until(claim: Callable[[], object]) -> None:
    """Wait until a claim about what the loop does is true."""

    async def is_true() -> bool:
        return bool(claim())

    await poll_async(is_true, _PATIENCE)


async def wait_credit(ranks: list[MeshRank]) -> None:
    """Wait until all bytes sent unasked are accounted for, neither less nor more than were sent."""

    async def is_accounted() -> bool:
        return all(
            _count_credit(sender, receiver) == EAGER_BUDGET
            for sender in ranks
            for receiver in ranks
            if sender is not receiver
        )

    await poll_async(is_accounted, _PATIENCE)


def _count_credit(sender: MeshRank, receiver: MeshRank) -> int:
    state = receiver.links.get_state(sender.rank)
    assert state is not None
    inbox = receiver.mesh._inbox
    return (
        sender.mesh._senders[receiver.rank].outbox.state.credit
        + state.consumed
        + inbox._uncredited.get(sender.rank, 0)
        + inbox._held_bytes.get(sender.rank, 0)
    )
