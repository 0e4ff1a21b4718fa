"""allhands as a benchmarked system, its calls awaited on a running event loop.

The loop runs for the calls of a batch, and ranks start together within it: a program awaits on a
loop that runs already.
"""

import asyncio
import platform
import time
from collections.abc import Awaitable, Callable, Mapping
from importlib import metadata
from typing import Any

import numpy as np

from allhands.bench.case import BenchCase
from allhands.bench.data import Array, get_carrier
from allhands.bench.systems import forms
from allhands.bench.systems.allhands_calls import get_numpy_type
from allhands.bench.systems.system import BoundCall, Call, concatenate


class AwaitedSystem:
    """One rank of allhands on asyncio's event loop, or on uvloop's."""

    def __init__(self, name: str) -> None:
        import uvloop

        import allhands.aio as aio

        is_uvloop = name == "allhands-uvloop"
        self._loop: asyncio.AbstractEventLoop
        self._loop = uvloop.new_event_loop() if is_uvloop else asyncio.new_event_loop()
        self._connection = aio.connect()
        self._world: Any = self._loop.run_until_complete(self._connection.__aenter__())
        self.rank, self.size = self._world.rank, self._world.size
        kind = f"uvloop {metadata.version('uvloop')}" if is_uvloop else "asyncio"
        self.about = {"python": platform.python_version(), "loop": kind}

    def allocate(self, elements: int, dtype: str) -> Array:
        return np.empty(elements, get_carrier(dtype))

    def bind(self, case: BenchCase, x: Array, out: Array, seed: int) -> BoundCall:
        world, own_type = self._world, get_numpy_type(case.dtype)
        x, out = x.view(own_type), out.view(own_type)
        calls: Mapping[str, Callable[[], Awaitable[Any]]] = {
            "all_reduce": lambda: world.all_reduce(x),
            "all_gather": lambda: world.all_gather_into_tensor(out, x),
            "reduce_scatter": lambda: world.reduce_scatter_tensor(out, x),
            "broadcast": lambda: world.broadcast(x, 0),
            "reduce": lambda: world.reduce(x, 0),
            "all_to_all": lambda: world.all_to_all_single(out, x),
            "barrier": lambda: world.barrier(),
            "scan": lambda: world.scan(x),
            "exscan": lambda: world.exscan(x),
            "all_gather_v": lambda: world.all_gather_v(x),
        }
        if case.operation not in calls:
            raise forms.refuse("awaiting", case.operation)
        read = concatenate if case.operation == "all_gather_v" else None
        return BoundCall(calls[case.operation], read, repeat=self._repeat)

    def _repeat(
        self, call: Call, calls: int, start: Call, before_last: Call | None = None
    ) -> tuple[float, Any]:
        async def run() -> tuple[float, Any]:
            start()
            begun = time.perf_counter()
            for _ in range(calls - 1):
                await call()
            if before_last is not None:
                before_last()
            result = await call()
            return time.perf_counter() - begun, result

        return self._loop.run_until_complete(run())

    def get_variant(self) -> str | None:
        return None

    def close(self) -> None:
        self._loop.run_until_complete(self._connection.__aexit__(None, None, None))
        self._loop.close()
