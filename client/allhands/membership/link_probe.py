"""Latency and bandwidth of a world's links, measured once at start; equal on all ranks."""

import asyncio
import os
import time
from collections.abc import Callable

import numpy as np

from allhands.collectives.algorithms.cost import LinkCost, count_rounds
from allhands.collectives.reduction import ReduceOp
from allhands.engine.group_engine import GroupEngine
from allhands.engine.work.work import Work
from allhands.futures import wrap_for_loop
from allhands.group.group import Group

_NBYTES = 1 << 20
"""Enough for a link to show its rate; 90 ms at 100 Mbit/s."""
_BARRIERS = 5
_SHIFTS = 2


class _SameLoopExecutor:
    """Executor of a group whose calls already come from its loop."""

    callbacks = None

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def call(self, act: Callable[..., object], *arguments: object) -> None:
        self._loop.call_soon(act, *arguments)

    def run_on_caller_thread(self, act: Callable[[], bool]) -> bool:
        return False


async def measure_links(engine: GroupEngine, local_ranks: int = 1) -> LinkCost:
    """Measure over a group of all ranks: the slowest of the links between neighbours counts.

    On this host are `local_ranks` of them.

    Raises:
        AllhandsError: a rank did not take part.
    """
    group = Group(engine, _SameLoopExecutor(), engine.order.timeout)
    await _await_work(group.barrier())  # which dials
    latency = min([await _time_call(group.barrier) for _ in range(_BARRIERS)]) / count_rounds(
        group.size
    )
    onward = [0] * group.size
    onward[(group.rank + 1) % group.size] = _NBYTES
    inward = [0] * group.size
    inward[(group.rank - 1) % group.size] = _NBYTES
    source, target = np.zeros(_NBYTES, np.uint8), np.zeros(_NBYTES, np.uint8)

    def shift() -> Work:
        return group.all_to_all_single(target, source, inward, onward)

    # A link that is new takes longer.
    seconds = min([await _time_call(shift) for _ in range(_SHIFTS)])
    shared = 1 / _count_processors(local_ranks)
    worst = np.array([latency, max(seconds - latency, 1e-9) / _NBYTES, shared])
    await _await_work(group.all_reduce(worst, ReduceOp.MAX))
    return LinkCost(float(worst[0]), 1 / float(worst[1]), 1 / float(worst[2]))


def _count_processors(local_ranks: int) -> float:
    """Return the processors that a rank has, of those that this process may run on.

    Where they are no more than its share of the host's, the ranks count as bound to processors of
    their own: a job that is confined to a small part of a host is taken to have more than it has.
    """
    usable, all_of_host = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    is_bound = usable * local_ranks <= all_of_host
    return usable if is_bound else usable / local_ranks


async def _time_call(call: Callable[[], Work]) -> float:
    begun = time.perf_counter()
    await _await_work(call())
    return time.perf_counter() - begun


async def _await_work(work: Work) -> None:
    await wrap_for_loop(work.get_future())
