"""Awaiting a `Work` on an asyncio event loop; cancelling the wait cancels the call."""

import asyncio
from typing import Any, TypeVar

from allhands.engine.work.work import Work
from allhands.futures import wrap_for_loop

T = TypeVar("T")

INLINE_SECONDS = 20e-6
"""How long the loop is held for other ranks that are about to come; over shared memory in 2 of 16
calls for 300 us."""
_CANCEL_SECONDS = 1.0
"""Far longer than the one turn of the I/O loop that ending a call takes."""


async def await_result(work: Work) -> Any:
    """Return the result of a call; on cancellation end the call first.

    A call over shared memory of at most 1 MiB for which the other ranks are there, or come while
    the loop is held, ends here without another thread; the loop has its turn after some of those.
    """
    if work._try_complete(INLINE_SECONDS):
        if work._owes_turn():
            await asyncio.sleep(0)
        return work.result()
    future = wrap_for_loop(work.get_future())
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        work.cancel()
        await asyncio.wait([future], timeout=_CANCEL_SECONDS)
        if future.done() and not future.cancelled():
            future.exception()
        raise


async def await_then_return(work: Work, result: T) -> T:
    """Wait for a call as `await_result` does; return a known result."""
    await await_result(work)
    return result
