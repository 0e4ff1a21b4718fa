"""Blocks of coalesced calls over links, and where they are carried out."""

import numpy as np

import allhands as ah
from allhands.engine.queue import CallQueue
from programs.counts import count_calls
from programs.protocol import failure, tell


def coalesce(rounds: int) -> None:
    ah.init_process_group(backend="socket", timeout=20)
    me, size = ah.get_rank(), ah.get_world_size()
    total, wrong = size * (size - 1) // 2, []
    for _ in range(3):
        ah.all_reduce(np.zeros(3))
    queued = count_calls(CallQueue, "submit")
    for number in range(rounds):
        arrays = [np.full((length, 2), me + number) for length in (1, 7, 100)]
        with ah.coalescing() as block:
            for x in arrays:
                ah.all_reduce(x)
        if not all((x == total + size * number).all() for x in arrays):
            wrong.append(number)
        if [work.result() is x for work, x in zip(block.works, arrays, strict=True)] != [True] * 3:
            wrong.append(-number)
    tell("blocks", wrong=wrong, queued=len(queued), explained=block.works[0].explain())
    x = np.ones(3 + me)  # unlike on the ranks

    def differ() -> None:
        with ah.coalescing():
            ah.all_reduce(np.ones(2))
            ah.all_reduce(x)

    tell("unlike", **failure(differ), kept=bool((x == 1).all()))
    ah.destroy_process_group()
