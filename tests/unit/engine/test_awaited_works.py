"""Awaited works that end at once: the turns that they leave to other tasks of the loop."""

import asyncio
from typing import Any, cast

from allhands.aio.waiting import await_result
from allhands.collectives.signature import CallSignature
from allhands.engine.work.shm_work import INLINE_CALLS, ShmWorkContext
from allhands.engine.work.work import Work


class EndedWork(Work):
    """A work that ends as soon as it is awaited."""

    def __init__(self, context: ShmWorkContext) -> None:
        super().__init__(CallSignature("all_reduce"), 1, None, "world")
        self._context = context

    def _try_complete(self, seconds: float) -> bool:
        self.succeed(None)
        return True

    def _owes_turn(self) -> bool:
        return self._context.count_inline()


def test_the_loop_has_its_turn_after_some_calls_that_ended_at_once() -> None:
    context = ShmWorkContext("world", *cast(Any, (None, None, None)))

    async def main() -> list[int]:
        turns: list[int] = []
        for _ in range(2):
            for made in range(INLINE_CALLS):
                asyncio.get_running_loop().call_soon(turns.append, made)
                await await_result(EndedWork(context))
            turns.append(-1)
        return turns

    each = [*range(INLINE_CALLS), -1]  # all come at the last call, and before what follows
    assert asyncio.run(main()) == each * 2
