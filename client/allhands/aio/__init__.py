"""The asyncio face: `async with connect(...) as world: await world.all_reduce(x)`.

The same core as the plain calls, on the same thread of its own: a busy loop of the program's
delays its answers, not its heartbeats. Cancelling an awaited call ends the call.
"""

from allhands.aio.group import AsyncGroup
from allhands.aio.world import AsyncWorld, connect

__all__ = ["AsyncGroup", "AsyncWorld", "connect"]
