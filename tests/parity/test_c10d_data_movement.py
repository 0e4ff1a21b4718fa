"""Results of a process group's calls without reduction, in c10d's forms."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import allhands as ah
from allhands.testing import on_threads, run_threads
from support import c10d_cases
from support.arrays.c10d_results import (
    ARRAYS,
    SIZE,
    SIZES,
    SQUARES,
    Array,
    draw_arrays,
    equal,
    given,
)

Make = Callable[[Array], Array]


def column(array: Array) -> Array:
    """Return an equal array with noncontiguous elements."""
    return np.stack([array, array], axis=1)[:, 0]


def whole(array: Array) -> Array:
    return array.copy()


# ---------------------------------------------------------------- broadcast


@on_threads(SIZE)
def test_p016_broadcast_of_an_empty_array() -> None:
    xs = [np.zeros(0, np.float32)]
    future = ah.process_group().broadcast(xs).get_future()
    future.wait(20)
    (output,) = future.value()
    assert output is xs[0]
    assert output.size == 0


@pytest.mark.parametrize("size", SIZES)
def test_p017_broadcast_of_every_root(size: int) -> None:
    run_threads(size)(partial(c10d_cases.broadcast_from_every_root, ARRAYS, size=size))


@pytest.mark.parametrize("size", SIZES)
def test_p017_broadcast_of_every_root_tensor(size: int) -> None:
    run_threads(size)(partial(c10d_cases.broadcast_from_every_root_tensor, ARRAYS, size=size))


@on_threads(SIZE)
def test_p017_broadcast_of_one_array_alone(rank: int) -> None:
    pg = ah.process_group()
    for call in (lambda x: pg.broadcast(x, root=0), lambda x: pg.broadcast(x, 0)):
        equal(given(call(np.array([rank + 1.0]))), [np.array([1.0])])


# ---------------------------------------------------------------- gather and scatter


@pytest.mark.parametrize("make", [whole, column])
@pytest.mark.parametrize("size", SIZES)
def test_p028_gather_to_every_root(size: int, make: Make) -> None:
    gathered_to_every_root(size, make)


def test_p029_gather_reads_what_is_not_contiguous() -> None:
    assert not column(np.arange(3)).flags.c_contiguous
    gathered_to_every_root(SIZE, column)


def gathered_to_every_root(size: int, make: Make) -> None:
    run_threads(size)(partial(c10d_cases.gather_to_every_root, ARRAYS, size=size, make=make))


@on_threads(SIZE)
def test_p028_gather_of_one_array_alone(rank: int) -> None:
    outputs = [np.zeros(1) for _ in range(SIZE)] if rank == 2 else None
    found = given(ah.process_group().gather(outputs, np.array([rank + 0.5]), root=2))
    equal(found, [np.array([one + 0.5]) for one in range(SIZE)] if rank == 2 else [])


@pytest.mark.parametrize("make", [whole, column])
@pytest.mark.parametrize("size", SIZES)
def test_p031_scatter_from_every_root(size: int, make: Make) -> None:
    run_threads(size)(partial(c10d_cases.scatter_from_every_root, ARRAYS, size=size, make=make))


@on_threads(SIZE)
def test_p031_scatter_of_one_array_alone(rank: int) -> None:
    each = [np.array([to + 0.5]) for to in range(SIZE)] if rank == 3 else None
    found = given(ah.process_group().scatter(np.zeros(1), each, root=3))
    equal(found, [np.array([rank + 0.5])])


# ---------------------------------------------------------------- allgather


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("size", SIZES)
def test_p033_allgather_of_several_arrays_a_rank(size: int, count: int) -> None:
    gathered_by_all(size, count, whole)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_p034_allgather_reads_what_is_not_contiguous(count: int) -> None:
    gathered_by_all(SIZE, count, column)


def gathered_by_all(size: int, count: int, make: Make) -> None:
    run_threads(size)(
        partial(c10d_cases.allgather_of_several_arrays, ARRAYS, size=size, count=count, make=make)
    )


@on_threads(SIZE)
def test_p033_allgather_of_one_array_alone(rank: int) -> None:
    outputs = [np.zeros((2, 2)) for _ in range(SIZE)]
    wanted = [np.full((2, 2), float(one)) for one in range(SIZE)]
    equal(given(ah.process_group().allgather(outputs, np.full((2, 2), float(rank)))), wanted)
    equal(outputs, wanted)


@on_threads(SIZE)
def test_p033_allgather_base_fills_one_array(rank: int) -> None:
    output = np.zeros((SIZE, 3), np.int16)
    found = given(ah.process_group()._allgather_base(output, np.full(3, rank, np.int16)))
    equal(found, [np.repeat(np.arange(SIZE, dtype=np.int16), 3).reshape(SIZE, 3)])
    assert found[0] is output


def _of_rank(rank: int) -> list[Array]:
    """Return arrays of several shapes and dtypes."""
    return [
        np.array([rank]),
        np.full((2, 3), rank + 0.5, np.float32),
        np.array(bool(rank % 2)),
        np.zeros((0, 4)),
    ]


@pytest.mark.parametrize("size", SIZES)
def test_p036_allgather_coalesced_is_waited_for_later(size: int) -> None:
    def body(rank: int) -> None:
        pg = ah.process_group()
        rounds = []
        for at in range(2):
            lists = [[np.zeros_like(x) for x in _of_rank(0)] for _ in range(size)]
            rounds.append((lists, pg.allgather_coalesced(lists, _of_rank(rank + at))))
        for at, (lists, work) in enumerate(rounds):
            wanted = [_of_rank(one + at) for one in range(size)]
            equal(given(work), wanted)
            equal(lists, wanted)

    run_threads(size)(body)


@pytest.mark.parametrize("size", SIZES)
def test_p036_all_gather_coalesced_plainly(size: int) -> None:
    def body(rank: int) -> None:
        rounds = []
        for at in range(2):
            mine = [np.array([at + rank]), np.full((2, 2), at + rank)]
            lists = [[np.zeros_like(x) for x in mine] for _ in range(size)]
            rounds.append((lists, ah.all_gather_coalesced(lists, mine, async_op=True)))
        for at, (lists, work) in enumerate(rounds):
            assert work is not None
            wanted = [[np.array([at + one]), np.full((2, 2), at + one)] for one in range(size)]
            equal(given(work), wanted)
            equal(lists, wanted)

    run_threads(size)(body)


@on_threads(1)
def test_p036_allgather_coalesced_of_a_rank_alone() -> None:
    x = np.ones((10, 10), np.float32)
    outputs = [np.zeros_like(x)]
    given(ah.process_group().allgather_coalesced([outputs], [x]))
    equal(outputs, [x])


@pytest.mark.parametrize("size", SIZES)
def test_p037_allgather_into_tensor_coalesced(size: int) -> None:
    def body(rank: int) -> None:
        inputs = draw_arrays(SQUARES)
        mine = [x + np.float32(rank) for x in inputs]
        outputs = [np.empty((size * rows, width), np.float32) for rows, width in SQUARES]
        found = given(ah.process_group().allgather_into_tensor_coalesced(outputs, mine))
        equal(found, [np.concatenate([x + np.float32(r) for r in range(size)]) for x in inputs])
        equal(outputs, found)

    run_threads(size)(body)


@on_threads(SIZE)
def test_p037_all_gather_into_tensor_coalesced_plainly(rank: int) -> None:
    inputs = draw_arrays(SQUARES)
    outputs = [np.empty((SIZE * rows, width), np.float32) for rows, width in SQUARES]
    ah.all_gather_into_tensor_coalesced(outputs, [x + np.float32(rank) for x in inputs])
    equal(outputs, [np.concatenate([x + np.float32(r) for r in range(SIZE)]) for x in inputs])


@pytest.mark.parametrize("size", SIZES)
def test_p041_alltoall_of_lists(size: int) -> None:
    def body(rank: int) -> None:
        inputs = [np.full(to + 1, rank * size + to) for to in range(size)]
        outputs = [np.empty(rank + 1, np.int64) for _ in range(size)]
        found = given(ah.process_group().alltoall(outputs, inputs))
        equal(found, [np.full(rank + 1, one * size + rank) for one in range(size)])
        equal(outputs, found)

    run_threads(size)(body)


@pytest.mark.parametrize("sizes", [None, [], [1, 1, 1, 1], np.ones(4, np.int64)], ids=repr)
def test_p042_alltoall_base_with_sizes_of_every_kind(sizes: Any) -> None:
    def body(rank: int) -> None:
        output = np.zeros((SIZE, 2), np.int64)
        x = np.full((SIZE, 2), rank)
        equal(given(ah.process_group().alltoall_base(output, x, sizes, sizes)), [output])
        assert output.tolist() == [[one, one] for one in range(SIZE)]

    run_threads(SIZE)(body)


@on_threads(SIZE)
def test_p042_alltoall_base_with_sizes_that_differ(rank: int) -> None:
    """Rank r sends r rows to rank 0, and a single row to every rank above 0."""
    send = [rank, 1, 1, 1]
    recv = [0, 1, 2, 3] if rank == 0 else [1] * SIZE
    output, x = np.full((sum(recv), 2), -1), np.full((sum(send), 2), rank)
    given(ah.process_group().alltoall_base(output, x, recv, send))
    assert output[:, 0].tolist() == [one for one in range(SIZE) for _ in range(recv[one])]
