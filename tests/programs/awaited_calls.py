"""Awaited calls: the turns of the other tasks of a loop."""

import asyncio
import itertools
import os

import numpy as np

import allhands as ah
from programs.protocol import hear, tell

CALLS = 320


def call_without_a_pause(is_crowded: bool, backend: str = "auto") -> None:
    """Count the turns of another task; if crowded, with one processor for all ranks."""
    if is_crowded:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    async def main() -> None:
        async with ah.aio.connect(timeout=30, backend=backend) as world:
            for _ in range(5):  # from then on there is a communicator, or the links are lent
                await world.barrier()
            turns = itertools.count()

            async def count() -> None:
                while True:
                    next(turns)
                    await asyncio.sleep(0)

            counting = asyncio.create_task(count())
            for _ in range(CALLS):
                x = await world.all_reduce(np.full(3, world.rank + 1.0))
                assert (x == 3).all()
            tell("done", turns=next(turns))
            counting.cancel()

    asyncio.run(main())


def await_a_late_rank(backend: str = "auto") -> None:
    async def main() -> None:
        async with ah.aio.connect(timeout=30, backend=backend) as world:
            for _ in range(5):  # from then on there is a communicator, or the links are lent
                await world.barrier()
            if world.rank == 1:
                await asyncio.to_thread(hear)
            x = np.full(3, world.rank + 1.0)
            calling = asyncio.create_task(world.all_reduce(x))
            for _ in range(100):
                await asyncio.sleep(0)
            tell("goes on")
            assert (await calling == 3).all()
            tell("done")

    asyncio.run(main())
