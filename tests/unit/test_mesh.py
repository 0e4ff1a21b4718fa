"""The links of one rank as others come and go."""

import asyncio

from allhands.transport.frame import Key
from allhands.transport.inproc import InprocFabric, Switchboard
from allhands.transport.mesh import Mesh
from allhands.transport.outbox import EAGER, Outgoing


class Silent:
    def refused(self, peer: int, key: Key, call: str) -> None: ...

    def unlike(self, peer: int, key: Key) -> None: ...

    def link_broken(self, peer: int, reason: str) -> None: ...


async def test_what_a_rank_that_left_never_took_in_does_not_hold_up_leaving() -> None:
    board = Switchboard()
    meshes = [Mesh(Silent()), Mesh(Silent())]
    for rank, mesh in enumerate(meshes):
        mesh.attach(InprocFabric(board, rank, mesh))
    waiting = Outgoing(Key(1, 1), [memoryview(bytes(EAGER + 1))], 0, lambda _: None)
    meshes[0].send(1, waiting)  # nobody ever asks for it
    await asyncio.sleep(0)
    meshes[0].part(1)
    async with asyncio.timeout(5):
        await meshes[0].drain()
    for mesh in meshes:
        await mesh.aclose()
