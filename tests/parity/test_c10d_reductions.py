"""Results of a process group's reductions, in c10d's forms, on every rank."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

import allhands as ah
from allhands import c10d
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
    with_options,
)


@pytest.mark.parametrize("size", SIZES)
def test_p020_allreduce_with_every_operation(size: int) -> None:
    run_threads(size)(partial(c10d_cases.allreduce_with_every_operation, ARRAYS, size=size))


@pytest.mark.parametrize("size", SIZES)
def test_p020_allreduce_of_several_arrays_combines_all_of_all_ranks(size: int) -> None:
    def body(rank: int) -> None:
        c10d_cases.allreduce_of_two_arrays(ARRAYS, rank, size)
        mine = [np.array([2.0 * rank]), np.array([2.0 * rank + 1])]
        equal(given(ah.process_group().allreduce(mine, ah.ReduceOp.AVG)), mine)
        equal(mine, [np.array([size - 0.5])] * 2)

    run_threads(size)(body)


PAIR = np.dtype([("value", np.float32), ("index", np.int64)])


@pytest.mark.parametrize(
    ("op", "make", "wanted"),
    [
        (ah.ReduceOp.premul_sum(3), lambda at: np.array([at + 1.0]), np.array([108.0])),
        (ah.ReduceOp.LAND, lambda at: np.array([at]), np.array([0])),
        (ah.ReduceOp.LOR, lambda at: np.array([2 * at]), np.array([1])),
        (ah.ReduceOp.LXOR, lambda at: np.array([2 * (at < 3)]), np.array([1])),
        (
            ah.ReduceOp.MINLOC,
            lambda at: np.array([(abs(5 - at), at)], PAIR),
            np.array([(0, 5)], PAIR),
        ),
        (ah.ReduceOp.user(lambda a, b: 10 * a + b), lambda at: np.array([at]), None),
    ],
    ids=["PREMUL_SUM", "LAND", "LOR", "LXOR", "MINLOC", "USER"],
)
def test_p020_allreduce_of_several_arrays_with_the_other_operations(
    op: ah.ReduceOp, make: Callable[[int], Array], wanted: Array | None
) -> None:
    """Rank r contributes the arrays numbered 2r and 2r + 1."""

    def body(rank: int) -> None:
        mine = [make(2 * rank), make(2 * rank + 1)]
        found = given(ah.process_group().allreduce(mine, op))
        if wanted is None:  # which is not associative: pairs first, then the ranks in their order
            equal(found, [np.array([1000 * 1 + 100 * 23 + 10 * 45 + 67])] * 2)
        else:
            equal(found, [wanted, wanted])

    run_threads(SIZE)(body)


@on_threads(SIZE)
def test_p020_allreduce_of_one_array_alone(rank: int) -> None:
    pg = ah.process_group()
    equal(given(pg.allreduce(np.array([rank + 1.0]))), [np.array([10.0])])
    equal(given(pg.allreduce(np.array([rank + 1.0]), ah.ReduceOp.MAX)), [np.array([4.0])])
    equal(given(pg.allreduce([np.array([rank + 1.0])], op=ah.ReduceOp.MIN)), [np.array([1.0])])


@pytest.mark.parametrize("size", SIZES)
def test_p023_allreduce_coalesced(size: int) -> None:
    run_threads(size)(partial(c10d_cases.allreduce_coalesced, ARRAYS, size=size))


@on_threads(SIZE)
def test_p023_all_reduce_coalesced_plainly(rank: int) -> None:
    for op, mine, wanted in c10d_cases.list_coalesced_reductions(ARRAYS, rank, SIZE):
        ah.all_reduce_coalesced(mine, op)
        equal(mine, wanted)


@on_threads(SIZE)
def test_p024_allreduce_coalesced_is_waited_for_later(rank: int) -> None:
    pg = ah.process_group()
    for call in (partial(ah.all_reduce_coalesced, async_op=True), pg.allreduce_coalesced):
        works = [call(2 * [np.array([at + rank])]) for at in range(2)]
        found = ah.futures.wait_all([work.get_future() for work in works])
        equal(found, [[np.array([SIZE * at + 6])] * 2 for at in range(2)])


@on_threads(SIZE)
def test_p024_an_array_may_be_twice_in_a_list(rank: int) -> None:
    pg, total = ah.process_group(), sum(range(SIZE))
    for coalesced in (pg.allreduce_coalesced, pg.group.all_reduce_coalesced):
        x, y = np.full((2, 3), rank), np.array([10 * rank])
        found = given(coalesced([x, y, x, x.reshape(-1)]))
        assert [one.ravel().tolist() for one in (x, y)] == [[total] * 6, [10 * total]]
        assert [one.shape for one in found] == [(2, 3), (1,), (2, 3), (6,)]
    ah.all_reduce_coalesced([x := np.array([rank]), y := np.array([5]), x, y])
    assert (x.tolist(), y.tolist()) == ([total], [5 * SIZE])
    ah.broadcast_coalesced([x := np.array([rank]), x], 2)
    assert x.tolist() == [2]
    given(pg.allreduce([x := np.array([rank]), x]))
    assert x.tolist() == [2 * total]
    given(pg.broadcast([x := np.array([rank]), x], root=3))
    assert x.tolist() == [3]
    sparse = ah.SparseArray([[rank]], [1], (SIZE,))
    given(pg.allreduce([sparse, sparse]))
    assert sparse.todense().tolist() == [2] * SIZE
    with ah.coalescing():  # calls after one another, of which the second sees what the first made
        ah.all_reduce(x := np.array([1]))
        ah.all_reduce(x)
    assert x.tolist() == [SIZE * SIZE]


@on_threads(2)
def test_p024_an_array_that_is_filled_is_in_a_list_once() -> None:
    pg, x, mine = ah.process_group(), np.zeros(2), np.ones(2)
    calls: list[Callable[[], object]] = [
        lambda: ah.all_gather([x, x], mine),
        lambda: ah.all_to_all([x, x], [mine, mine]),
        lambda: ah.all_gather_into_tensor_coalesced([x, x], [mine[:1], mine[:1]]),
        lambda: ah.reduce_scatter_tensor_coalesced([x, x], [np.ones(4), np.ones(4)]),
        lambda: ah.all_gather_coalesced([[x], [x]], [mine]),
        lambda: pg.allgather([[x, x]], [mine]),
        lambda: pg.gather([[x, x]], [mine], root=pg.rank()),
        lambda: ah.all_reduce_coalesced([x, x[1:]]),
    ]
    for call in calls:
        for kind in (RuntimeError, ValueError):
            with pytest.raises(kind, match="share memory"):
                call()
    assert not x.any()
    assert pg.group.sequence == 0


def rows(rank: int, size: int, sparse_dims: int, dense_dims: int) -> ah.SparseArray:
    """Return the input of c10d's own tests: rank + 1 ones."""
    indices = np.zeros((sparse_dims, rank + 1), np.int64)
    indices[-1] = np.arange(rank + 1)
    shape = [size] * sparse_dims + [2] * dense_dims
    return ah.SparseArray(indices, np.ones([rank + 1] + [2] * dense_dims), shape)


@pytest.mark.parametrize("op", [ah.ReduceOp.SUM, ah.ReduceOp.AVG, ah.ReduceOp.MIN, ah.ReduceOp.MAX])
@pytest.mark.parametrize("dims", [(1, 0), (2, 0), (1, 1), (2, 3)])
@pytest.mark.parametrize("count", [1, 2])
def test_p025_sparse_allreduce_of_several_arrays_a_rank(
    count: int, dims: tuple[int, int], op: ah.ReduceOp
) -> None:
    def body(rank: int) -> None:
        mine = [rows((rank + at) % SIZE, SIZE, *dims) for at in range(count)]
        all_ranks = [
            rows((one + at) % SIZE, SIZE, *dims) for one in range(SIZE) for at in range(count)
        ]
        dense = np.stack([one.todense() for one in all_ranks])
        match op:
            case ah.ReduceOp.SUM:
                wanted = dense.sum(axis=0)
            case ah.ReduceOp.AVG:
                wanted = dense.mean(axis=0)
            case ah.ReduceOp.MIN:
                wanted = dense.min(axis=0)
            case _:
                wanted = dense.max(axis=0)
        found = given(ah.process_group().allreduce(mine, op=op))
        assert found == mine  # they themselves
        for one in mine:
            equal(one.todense(), wanted)

    run_threads(SIZE)(body)


@pytest.mark.parametrize("size", SIZES)
def test_p026_reduce_with_every_operation_to_every_root(size: int) -> None:
    def body(rank: int) -> None:
        c10d_cases.reduce_to_every_root(ARRAYS, rank, size)
        x = np.array([rank + 1.0])
        ah.process_group().reduce(x, 1, ah.ReduceOp.MAX).wait(20)
        assert x == (size if rank == 1 else rank + 1)

    run_threads(size)(body)


@pytest.mark.parametrize("op", [ah.ReduceOp.SUM, ah.ReduceOp.AVG])
@pytest.mark.parametrize("size", SIZES)
def test_p038_reduce_scatter_of_lists(size: int, op: ah.ReduceOp) -> None:
    def body(rank: int) -> None:
        pg = ah.process_group()
        inputs = [np.full((3, 3), float(one)) for one in range(size)]
        wanted = [np.full((3, 3), float(rank * (size if op is ah.ReduceOp.SUM else 1)))]
        opts = with_options(c10d.ReduceScatterOptions, reduceOp=op)
        equal(given(pg.reduce_scatter([np.empty((3, 3))], [inputs], opts)), wanted)
        equal(given(pg.reduce_scatter(np.empty((3, 3)), inputs, op)), wanted)

    run_threads(size)(body)


@pytest.mark.parametrize("size", [2, 3])
def test_p038_reduce_scatter_of_lists_whose_arrays_have_several_shapes(size: int) -> None:
    def body(rank: int) -> None:
        pg = ah.process_group()
        inputs = [np.full((one + 1, 2), one + 10.0 * rank) for one in range(size)]
        output = np.zeros((rank + 1, 2))
        total = rank * size + 10.0 * sum(range(size))
        found = given(pg.reduce_scatter([output], [inputs]))
        equal(found, [np.full((rank + 1, 2), total)])
        assert found[0] is output
        with pytest.raises(RuntimeError, match="invalid tensor size"):
            pg.reduce_scatter([np.zeros((size + 1, 2))], [inputs])
        inputs[-1] = inputs[-1].astype(np.float32)
        with pytest.raises(RuntimeError, match="invalid tensor type"):
            pg.reduce_scatter([output], [inputs])
        equal([output], found)

    run_threads(size)(body)


@pytest.mark.parametrize("size", SIZES)
def test_p039_reduce_scatter_base_is_waited_for_later(size: int) -> None:
    def body(rank: int) -> None:
        (x,) = draw_arrays([(20 * size, 20)])
        output = np.empty((20, 20), np.float32)
        work = ah.process_group()._reduce_scatter_base(output, x)
        (found,) = given(work)
        np.testing.assert_allclose(found, x[20 * rank : 20 * (rank + 1)] * size, rtol=1e-6)
        assert found is output

    run_threads(size)(body)


@pytest.mark.parametrize("size", SIZES)
def test_p040_reduce_scatter_tensor_coalesced(size: int) -> None:
    def body(rank: int) -> None:
        inputs = draw_arrays([(size * rows, width) for rows, width in SQUARES])
        outputs = [np.empty(shape, np.float32) for shape in SQUARES]
        found = given(ah.process_group().reduce_scatter_tensor_coalesced(outputs, inputs))
        for output, x, (rows, _) in zip(outputs, inputs, SQUARES, strict=True):
            share = x[rank * rows : (rank + 1) * rows]
            np.testing.assert_allclose(output, share * size, rtol=1e-6)
        equal(found, outputs)

    run_threads(size)(body)
