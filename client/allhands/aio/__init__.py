"""The asyncio face: `async with connect(...) as world: await world.all_reduce(x)`.

The same core as the plain calls, on the same thread of its own: a busy loop of the program's
delays its answers, not its heartbeats. Cancelling an awaited call ends the call.
"""

from allhands.aio.control import AsyncControl, connect_control
from allhands.aio.double_barrier import AsyncDoubleBarrier
from allhands.aio.group import AsyncGroup
from allhands.aio.lease import AsyncLease
from allhands.aio.lock import AsyncElection, AsyncLock, AsyncSemaphore
from allhands.aio.watch import AsyncWatch
from allhands.aio.world import AsyncWorld, connect

__all__ = [
    "AsyncControl",
    "AsyncDoubleBarrier",
    "AsyncElection",
    "AsyncGroup",
    "AsyncLease",
    "AsyncLock",
    "AsyncSemaphore",
    "AsyncWatch",
    "AsyncWorld",
    "connect",
    "connect_control",
]
