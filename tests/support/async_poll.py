"""Waiting on an event loop for conditions of which no event tells."""

import asyncio
from collections.abc import Awaitable, Callable

_PAUSE = 0.01


async def poll_async(claim: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
    """Wait until a claim holds.

    Raises:
        TimeoutError: it did not.
    """
    async with asyncio.timeout(seconds):
        while True:
            if await claim():
                return
            await asyncio.sleep(_PAUSE)
