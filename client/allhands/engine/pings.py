"""Pings to the peers that a blocked call waits for over links: does anything come through?"""

import asyncio
from collections.abc import Callable, Sequence

from allhands.engine.verdict import Registry
from allhands.transport.mesh import Mesh

PING_SECONDS = 0.25
SILENT_SECONDS = 0.5
"""Who has sent nothing for so long after a ping is said not to answer: it may be behind data."""


async def keep_pinging(
    mesh: Mesh, ranks: Sequence[int], waiting_for: Callable[[], Sequence[int]], registry: Registry
) -> None:
    """Ping until cancelled; `waiting_for` are places in the group, `ranks` those of the world."""
    try:
        while True:
            for place in waiting_for():
                if not registry.shares_memory(ranks[place]):
                    mesh.ping(ranks[place])
            await asyncio.sleep(PING_SECONDS)
    finally:
        mesh.stop_pinging()
