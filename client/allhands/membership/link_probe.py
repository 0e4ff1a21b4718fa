"""What the links of a world can do, measured once, when it has formed; agreed by all its ranks."""

import asyncio
import time
from collections.abc import Callable

import numpy as np

from allhands.collectives.algorithms.cost import Wire, rounds_of
from allhands.collectives.reduction import ReduceOp
from allhands.engine.group_engine import GroupEngine
from allhands.engine.work.work import Work
from allhands.futures import awaitable
from allhands.group.group import Group

_NBYTES = 1 << 20
"""Enough for a link to show its rate; 90 ms at 100 Mbit/s."""
_BARRIERS = 5
_STREAMS = 2


class _OnLoop:
    """Hands the calls of a group over to the loop that makes them."""

    callbacks = None

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def call(self, act: Callable[..., object], *arguments: object) -> None:
        self._loop.call_soon(act, *arguments)

    def lend(self, act: Callable[[], bool]) -> bool:
        return False


async def gauge(engine: GroupEngine) -> Wire:
    """Measure over a group of all ranks: the slowest of the links between neighbours counts.

    Raises:
        AllhandsError: a rank did not take part.
    """
    group = Group(engine, _OnLoop(), engine.order.timeout)
    await _ended(group.barrier())  # which dials
    latency = min([await _timed(group.barrier) for _ in range(_BARRIERS)]) / rounds_of(group.size)
    onward = [0] * group.size
    onward[(group.rank + 1) % group.size] = _NBYTES
    inward = [0] * group.size
    inward[(group.rank - 1) % group.size] = _NBYTES
    source, target = np.zeros(_NBYTES, np.uint8), np.zeros(_NBYTES, np.uint8)

    def pass_on() -> Work:
        return group.all_to_all_single(target, source, inward, onward)

    # A link that is new takes longer.
    seconds = min([await _timed(pass_on) for _ in range(_STREAMS)])
    worst = np.array([latency, max(seconds - latency, 1e-9) / _NBYTES])
    await _ended(group.all_reduce(worst, ReduceOp.MAX))
    return Wire(float(worst[0]), 1 / float(worst[1]))


async def _timed(call: Callable[[], Work]) -> float:
    begun = time.perf_counter()
    await _ended(call())
    return time.perf_counter() - begun


async def _ended(work: Work) -> None:
    await awaitable(work.get_future())
