"""The module-level calls, in the manner of torch.distributed's tests: on thread ranks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import allhands as ah
from allhands.testing import on_threads, run_threads

SIZE = 4
Array = npt.NDArray[Any]


def full(value: float) -> Array:
    return np.full((3, 3), float(value))


def assert_full(found: Array, value: float) -> None:
    np.testing.assert_array_equal(found, full(value), strict=True)


@on_threads(SIZE)
def test_p019_broadcast_from_each_root_in_place(rank: int) -> None:
    for root in range(SIZE):
        x = full(rank)
        ah.broadcast(x, src=root)
        assert_full(x, root)


@on_threads(SIZE)
def test_p021_all_reduce_adds_up_by_default(rank: int) -> None:
    x = full(rank)
    ah.all_reduce(x)
    assert_full(x, sum(range(SIZE)))


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        (ah.ReduceOp.SUM, 10),
        (ah.ReduceOp.PRODUCT, 24),
        (ah.ReduceOp.MIN, 1),
        (ah.ReduceOp.MAX, 4),
        (ah.ReduceOp.BAND, 0),
        (ah.ReduceOp.BOR, 7),
        (ah.ReduceOp.BXOR, 4),
    ],
)
def test_p020_all_reduce_with_each_operation(op: ah.ReduceOp, wanted: int) -> None:
    def body(rank: int) -> None:
        x = np.full((3, 3), rank + 1)
        ah.all_reduce(x, op=op)
        np.testing.assert_array_equal(x, np.full((3, 3), wanted), strict=True)

    run_threads(SIZE)(body)


@on_threads(SIZE)
def test_p028_gather_fills_the_list_of_the_root_alone(rank: int) -> None:
    outputs = [full(-1) for _ in range(SIZE)] if rank == 0 else None
    ah.gather(full(rank), outputs)
    for one, output in enumerate(outputs or []):
        assert_full(output, one)
    ah.gather(full(rank), [full(-1) for _ in range(SIZE)] if rank == 3 else None, dst=3)


@on_threads(SIZE)
def test_p031_scatter_takes_the_list_of_the_root_alone(rank: int) -> None:
    output = full(-1)
    ah.scatter(output, [full(one) for one in range(SIZE)] if rank == 0 else None)
    assert_full(output, rank)


@on_threads(SIZE)
def test_p033_all_gather(rank: int) -> None:
    outputs = [full(-1) for _ in range(SIZE)]
    ah.all_gather(outputs, full(rank))
    for one, output in enumerate(outputs):
        assert_full(output, one)


@pytest.mark.parametrize(("op", "factor"), [(ah.ReduceOp.SUM, SIZE), (ah.ReduceOp.AVG, 1)])
def test_p038_reduce_scatter(op: ah.ReduceOp, factor: int) -> None:
    def body(rank: int) -> None:
        output = full(-1)
        ah.reduce_scatter(output, [full(one) for one in range(SIZE)], op=op)
        assert_full(output, rank * factor)

    run_threads(SIZE)(body)


@on_threads(SIZE)
def test_p039_reduce_scatter_tensor_is_waited_for_later(rank: int) -> None:
    x = np.random.default_rng(42).random((20 * SIZE, 20), np.float32)
    output = np.empty((20, 20), np.float32)
    work = ah.reduce_scatter_tensor(output, x, async_op=True)
    assert work is not None
    work.wait(20)
    np.testing.assert_allclose(output, x[20 * rank : 20 * (rank + 1)] * SIZE, rtol=1e-6)


@on_threads(SIZE)
def test_p041_all_to_all(rank: int) -> None:
    inputs = [full(rank * SIZE + to) for to in range(SIZE)]
    outputs = [np.empty_like(x) for x in inputs]
    ah.all_to_all(outputs, inputs)
    for one, output in enumerate(outputs):
        assert_full(output, one * SIZE + rank)


@pytest.mark.parametrize("sizes", [None, [1] * SIZE, np.ones(SIZE, np.int64)], ids=repr)
def test_p042_all_to_all_single_with_sizes_of_every_kind(sizes: Any) -> None:
    def body(rank: int) -> None:
        output = np.zeros((SIZE, 2), np.int64)
        ah.all_to_all_single(output, np.full((SIZE, 2), rank), sizes, sizes)
        assert output.tolist() == [[one, one] for one in range(SIZE)]

    run_threads(SIZE)(body)


# ---------------------------------------------------------------- one rank alone


def _alone() -> dict[str, Callable[[Array, Array], object]]:
    """Return calls of a rank alone, all of which fill the second array with the first."""

    def copied(x: Array, y: Array, call: Callable[[Array], object]) -> None:
        y[...] = x
        call(y)

    return {
        "reduce": lambda x, y: copied(x, y, lambda z: ah.reduce(z, 0)),
        "broadcast": lambda x, y: copied(x, y, lambda z: ah.broadcast(z, 0)),
        "all_reduce": lambda x, y: copied(x, y, ah.all_reduce),
        "barrier": lambda x, y: copied(x, y, lambda z: ah.barrier()),
        "all_gather": lambda x, y: ah.all_gather([y], x),
        "all_gather_into_tensor": lambda x, y: ah.all_gather_into_tensor(y, x),
        "reduce_scatter": lambda x, y: ah.reduce_scatter(y, [x]),
        "reduce_scatter_tensor": lambda x, y: ah.reduce_scatter_tensor(y, x),
        "all_to_all": lambda x, y: ah.all_to_all([y], [x]),
        "all_to_all_single": lambda x, y: ah.all_to_all_single(y, x),
        "gather": lambda x, y: ah.gather(x, [y]),
        "scatter": lambda x, y: ah.scatter(y, [x]),
    }


@pytest.mark.parametrize("call", _alone())
def test_p043_every_call_of_a_rank_alone(call: str) -> None:
    def body() -> None:
        x, y = full(7), full(0)
        _alone()[call](x, y)
        assert_full(x, 7)
        assert_full(y, 7)
        assert ah.default_group().sequence == 1

    run_threads(1)(body)


METHODS: dict[str, Callable[[ah.ProcessGroup, Array, Array], ah.Work]] = {
    "reduce": lambda pg, x, y: pg.reduce([y], root=0),
    "broadcast": lambda pg, x, y: pg.broadcast([y]),
    "allreduce": lambda pg, x, y: pg.allreduce([y]),
    "allreduce_coalesced": lambda pg, x, y: pg.allreduce_coalesced([y]),
    "allgather": lambda pg, x, y: pg.allgather([[y]], [x]),
    "_allgather_base": lambda pg, x, y: pg._allgather_base(y, x),
    "allgather_coalesced": lambda pg, x, y: pg.allgather_coalesced([[y]], [x]),
    "allgather_into_tensor_coalesced": lambda pg, x, y: pg.allgather_into_tensor_coalesced(
        [y], [x]
    ),
    "gather": lambda pg, x, y: pg.gather([[y]], [x]),
    "scatter": lambda pg, x, y: pg.scatter([y], [[x]]),
    "reduce_scatter": lambda pg, x, y: pg.reduce_scatter([y], [[x]]),
    "_reduce_scatter_base": lambda pg, x, y: pg._reduce_scatter_base(y, x),
    "reduce_scatter_tensor_coalesced": lambda pg, x, y: pg.reduce_scatter_tensor_coalesced(
        [y], [x]
    ),
    "alltoall": lambda pg, x, y: pg.alltoall([y], [x]),
    "alltoall_base": lambda pg, x, y: pg.alltoall_base(y, x, [], []),
}
IN_PLACE = frozenset({"reduce", "broadcast", "allreduce", "allreduce_coalesced"})


@pytest.mark.parametrize("method", METHODS)
def test_p043_every_method_of_a_rank_alone(method: str) -> None:
    def body() -> None:
        pg = ah.process_group()
        x, y = full(7), full(7 if method in IN_PLACE else 0)
        work = METHODS[method](pg, x, y)
        assert work.wait(20)
        assert_full(x, 7)
        assert_full(y, 7)
        assert np.ravel(work.result()).tolist() == [7.0] * 9
        pg.barrier().wait(20)

    run_threads(1)(body)
