"""Calls of asyncio: the world of `connect`, and calls on many arrays at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import allhands as ah
from allhands.testing import run_threads

SIZE = 3


def on_threads(act: Callable[[ah.aio.AsyncWorld], Awaitable[Any]], **options: Any) -> list[Any]:
    """Run a coroutine on a separate loop in each of several thread ranks."""

    async def main() -> Any:
        async with ah.aio.connect(backend="threads", timeout=20, **options) as world:
            return await act(world)

    return run_threads(SIZE, init=False)(lambda: asyncio.run(main()))


def test_threads_join_by_connect() -> None:
    async def act(world: ah.aio.AsyncWorld) -> Any:
        return world.rank, world.size, float((await world.all_reduce(np.ones(2)))[0])

    assert on_threads(act) == [(rank, SIZE, float(SIZE)) for rank in range(SIZE)]


def test_a_fake_world_is_joined_by_connect() -> None:
    async def main() -> Any:
        async with ah.aio.connect(backend="fake", rank=2, world_size=5) as world:
            await world.barrier()
            return world.rank, world.size

    assert asyncio.run(main()) == (2, 5)


def test_a_store_says_where_connect_meets() -> None:
    async def main() -> Any:
        async with ah.aio.connect(store=ah.HashStore(), rank=0, world_size=1) as world:
            return world.size, float((await world.all_reduce(np.ones(1)))[0])

    assert asyncio.run(main()) == (1, 1.0)


def test_a_store_and_a_url_are_not_given_together() -> None:
    async def main() -> None:
        async with ah.aio.connect("ah://localhost:1/job", store=ah.HashStore()):
            pass

    with pytest.raises(ValueError, match="init_method and store both say where to meet"):
        asyncio.run(main())


def test_connect_passes_on_that_results_are_deterministic() -> None:
    async def act(world: ah.aio.AsyncWorld) -> Any:
        return world._world._worker.config.deterministic

    assert on_threads(act, deterministic=True) == [True] * SIZE
    assert on_threads(act) == [False] * SIZE


def test_all_gather_coalesced_is_awaited() -> None:
    async def act(world: ah.aio.AsyncWorld) -> Any:
        inputs = [np.full(2, world.rank), np.full((2, 2), 10 * world.rank)]
        outputs = [[np.zeros_like(one) for one in inputs] for _ in range(SIZE)]
        assert await world.all_gather_coalesced(outputs, inputs) is outputs
        return [[int(one.flat[0]) for one in mine] for mine in outputs]

    assert on_threads(act) == [[[0, 0], [1, 10], [2, 20]]] * SIZE


def test_all_gather_into_tensor_coalesced_is_awaited() -> None:
    async def act(world: ah.aio.AsyncWorld) -> Any:
        inputs = [np.full(1, world.rank), np.full(2, 10 * world.rank)]
        outputs = [np.zeros(SIZE * len(one), one.dtype) for one in inputs]
        assert await world.all_gather_into_tensor_coalesced(outputs, inputs) is outputs
        return [one.tolist() for one in outputs]

    assert on_threads(act) == [[[0, 1, 2], [0, 0, 10, 10, 20, 20]]] * SIZE


def test_reduce_scatter_tensor_coalesced_is_awaited() -> None:
    async def act(world: ah.aio.AsyncWorld) -> Any:
        inputs = [np.arange(SIZE), np.arange(2 * SIZE)]
        outputs = [np.zeros(1, int), np.zeros(2, int)]
        most = ah.ReduceOp.MAX
        assert await world.reduce_scatter_tensor_coalesced(outputs, inputs) is outputs
        summed = [one.tolist() for one in outputs]
        await world.reduce_scatter_tensor_coalesced(outputs, inputs, most)
        return summed, [one.tolist() for one in outputs]

    assert on_threads(act) == [
        (
            [[SIZE * rank], [SIZE * 2 * rank, SIZE * (2 * rank + 1)]],
            [[rank], [2 * rank, 2 * rank + 1]],
        )
        for rank in range(SIZE)
    ]


@pytest.mark.parametrize("call", ["all_reduce", "all_reduce_sparse"])
def test_sparse_arrays_are_reduced_and_returned(call: str) -> None:
    async def act(world: ah.aio.AsyncWorld) -> Any:
        x = ah.SparseArray(np.array([[world.rank]]), np.ones(1), (SIZE,))
        assert await getattr(world, call)(x) is x
        return x.indices.tolist(), x.values.tolist()

    assert on_threads(act) == [([[0, 1, 2]], [1.0] * SIZE)] * SIZE
