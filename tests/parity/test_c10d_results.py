"""Results of a process group's methods, in c10d's forms, on every rank."""

import math
import operator
from collections.abc import Callable
from datetime import timedelta
from functools import partial, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import allhands as ah
from allhands import c10d
from allhands.testing import on_threads, run_threads

Array = npt.NDArray[Any]
Make = Callable[[Array], Array]
SIZES = (2, 3, 4)
SIZE = 4


def column(array: Array) -> Array:
    """Return an equal array with noncontiguous elements."""
    return np.stack([array, array], axis=1)[:, 0]


def whole(array: Array) -> Array:
    return array.copy()


def reductions(rank: int, size: int) -> list[tuple[ah.ReduceOp, Array, Array]]:
    """Return operations with a rank's input and the result, as in c10d's own tests."""
    one, total = float(rank + 1), size * (size + 1) / 2
    found: list[tuple[ah.ReduceOp, Array, Array]] = [
        (ah.ReduceOp.SUM, np.array([one]), np.array([total])),
        (ah.ReduceOp.AVG, np.array([one]), np.array([total / size])),
        (ah.ReduceOp.PRODUCT, np.array([one]), np.array([float(math.factorial(size))])),
        (ah.ReduceOp.MIN, np.array([one]), np.array([1.0])),
        (ah.ReduceOp.MAX, np.array([one]), np.array([float(size)])),
    ]
    bits = partial(np.array, dtype=np.int32)
    everybody = range(size)
    for at in range(4):
        common = reduce(operator.and_, [other | 1 << at for other in everybody])
        found.append((ah.ReduceOp.BAND, bits([rank | 1 << at]), bits([common])))
    for op, combine in ((ah.ReduceOp.BOR, operator.or_), (ah.ReduceOp.BXOR, operator.xor)):
        for width in range(1, 5):
            mine = reduce(combine, range(rank * width, (rank + 1) * width))
            found.append((op, bits([mine]), bits([reduce(combine, range(size * width))])))
    return found


def twofold(rank: int, size: int) -> list[tuple[ah.ReduceOp, list[Array], Array]]:
    """The same where each rank brings two arrays."""
    low, high = 2.0 * rank, 2.0 * rank + 1
    return [
        (ah.ReduceOp.SUM, [np.array([low]), np.array([high])], np.array([size * (2.0 * size - 1)])),
        (ah.ReduceOp.AVG, [np.array([low]), np.array([high])], np.array([size - 0.5])),
        (
            ah.ReduceOp.PRODUCT,
            [np.array([low + 1]), np.array([high + 1])],
            np.array([float(math.factorial(2 * size))]),
        ),
        (ah.ReduceOp.MIN, [np.array([low + 1]), np.array([high + 1])], np.array([1.0])),
        (ah.ReduceOp.MAX, [np.array([low + 1]), np.array([high + 1])], np.array([2.0 * size])),
    ]


def coalesced_reductions(
    rank: int, size: int
) -> list[tuple[ah.ReduceOp, list[Array], list[Array]]]:
    """The same where two arrays are combined side by side, the second of another shape."""
    one = rank + 1.0

    def arrays(*values: float) -> list[Array]:
        return [np.array([float(values[0])]), np.full((2, 3), float(values[1]))]

    squares = size * (size + 1) * (2 * size + 1) / 6
    return [
        (ah.ReduceOp.SUM, arrays(one, one**2), arrays(size * (size + 1) / 2, squares)),
        (
            ah.ReduceOp.PRODUCT,
            arrays(one, one + 1),
            arrays(math.factorial(size), math.factorial(size + 1)),
        ),
        (ah.ReduceOp.MIN, arrays(rank, one), arrays(0, 1)),
        (ah.ReduceOp.MAX, arrays(one, one + 1), arrays(size, size + 1)),
    ]


def with_options(kind: type[Any], **said: object) -> Any:
    opts = kind()
    for name, value in said.items():
        setattr(opts, name, value)
    return opts


def given(work: ah.Work) -> Any:
    """Return a call's result, within a generous time limit."""
    assert work.wait(20)
    return work.result()


def equal(found: Any, wanted: Any) -> None:
    """Compare arrays, and lists of them, with their shapes and dtypes."""
    if isinstance(wanted, list):
        assert isinstance(found, list)
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            equal(one, other)
    else:
        np.testing.assert_array_equal(found, wanted, strict=True)


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
    def body(rank: int) -> None:
        pg = ah.process_group()
        for root in range(size):
            x = np.array([rank])
            opts = with_options(c10d.BroadcastOptions, rootRank=root, rootTensor=0)
            equal(given(pg.broadcast([x], opts)), [np.array([root])])
            assert x == root

    run_threads(size)(body)


@pytest.mark.parametrize("size", SIZES)
def test_p017_broadcast_of_every_root_tensor(size: int) -> None:
    def body(rank: int) -> None:
        pg = ah.process_group()
        for root in range(size):
            for index in range(2):
                xs = [np.array([rank * 2 + at + 0.0]) for at in range(2)]
                opts = with_options(c10d.BroadcastOptions, rootRank=root, rootTensor=index)
                wanted = [np.array([root * 2 + index + 0.0])] * 2
                equal(given(pg.broadcast(xs, opts)), wanted)
                equal(xs, wanted)

    run_threads(size)(body)


@on_threads(SIZE)
def test_p017_broadcast_of_one_array_alone(rank: int) -> None:
    pg = ah.process_group()
    for call in (lambda x: pg.broadcast(x, root=0), lambda x: pg.broadcast(x, 0)):
        equal(given(call(np.array([rank + 1.0]))), [np.array([1.0])])


# ---------------------------------------------------------------- reductions


@pytest.mark.parametrize("size", SIZES)
def test_p020_allreduce_with_every_operation(size: int) -> None:
    def body(rank: int) -> None:
        pg = ah.process_group()
        for op, mine, wanted in reductions(rank, size):
            opts = with_options(c10d.AllreduceOptions, reduceOp=op)
            equal(given(pg.allreduce([mine], opts)), [wanted])

    run_threads(size)(body)


@pytest.mark.parametrize("size", SIZES)
def test_p020_allreduce_of_several_arrays_combines_all_of_all_ranks(size: int) -> None:
    def body(rank: int) -> None:
        pg = ah.process_group()
        for op, mine, wanted in twofold(rank, size):
            opts = with_options(c10d.AllreduceOptions, reduceOp=op)
            equal(given(pg.allreduce(mine, opts)), [wanted, wanted])
            equal(mine, [wanted, wanted])

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
    def body(rank: int) -> None:
        pg = ah.process_group()
        for op, mine, wanted in coalesced_reductions(rank, size):
            opts = with_options(c10d.AllreduceCoalescedOptions, reduceOp=op)
            equal(given(pg.allreduce_coalesced(mine, opts)), wanted)
            equal(mine, wanted)

    run_threads(size)(body)


@on_threads(SIZE)
def test_p023_all_reduce_coalesced_plainly(rank: int) -> None:
    for op, mine, wanted in coalesced_reductions(rank, SIZE):
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
        pg = ah.process_group()
        for op, mine, wanted in reductions(rank, size):
            for root in range(size):
                x = mine.copy()
                opts = with_options(c10d.ReduceOptions, reduceOp=op, rootRank=root)
                found = given(pg.reduce([x], opts))
                equal(found, [wanted if rank == root else mine])
        x = np.array([rank + 1.0])
        pg.reduce(x, 1, ah.ReduceOp.MAX).wait(20)
        assert x == (size if rank == 1 else rank + 1)

    run_threads(size)(body)


# ---------------------------------------------------------------- gather and scatter


@pytest.mark.parametrize("make", [whole, column])
@pytest.mark.parametrize("size", SIZES)
def test_p028_gather_to_every_root(size: int, make: Make) -> None:
    gathered_to_every_root(size, make)


def test_p029_gather_reads_what_is_not_contiguous() -> None:
    assert not column(np.arange(3)).flags.c_contiguous
    gathered_to_every_root(SIZE, column)


def gathered_to_every_root(size: int, make: Make) -> None:
    def body(rank: int) -> None:
        pg = ah.process_group()
        mine = [make(np.array([rank, -rank]))]
        works, outputs = [], []
        for root in range(size):
            outputs.append([np.full(2, -1) for _ in range(size)])
            opts = with_options(c10d.GatherOptions, rootRank=root)
            works.append(pg.gather([outputs[-1]] if rank == root else [], mine, opts))
        wanted = [np.array([one, -one]) for one in range(size)]
        for root, work in enumerate(works):
            equal(given(work), wanted if rank == root else [])
            equal(outputs[root], wanted if rank == root else [np.full(2, -1)] * size)

    run_threads(size)(body)


@on_threads(SIZE)
def test_p028_gather_of_one_array_alone(rank: int) -> None:
    outputs = [np.zeros(1) for _ in range(SIZE)] if rank == 2 else None
    found = given(ah.process_group().gather(outputs, np.array([rank + 0.5]), root=2))
    equal(found, [np.array([one + 0.5]) for one in range(SIZE)] if rank == 2 else [])


@pytest.mark.parametrize("make", [whole, column])
@pytest.mark.parametrize("size", SIZES)
def test_p031_scatter_from_every_root(size: int, make: Make) -> None:
    def body(rank: int) -> None:
        pg = ah.process_group()
        mine = [make(np.array([rank, 10 * to])) for to in range(size)]
        outputs = [np.full(2, -1) for _ in range(size)]
        works = []
        for root in range(size):
            opts = with_options(c10d.ScatterOptions, rootRank=root)
            works.append(pg.scatter([outputs[root]], [mine] if rank == root else [], opts))
        for root, work in enumerate(works):
            equal(given(work), [np.array([root, 10 * rank])])
            assert outputs[root].tolist() == [root, 10 * rank]

    run_threads(size)(body)


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
    def body(rank: int) -> None:
        mine = [make(np.array([count * rank + at, rank])) for at in range(count)]
        outputs = [[np.full(2, -1) for _ in range(count * size)] for _ in range(count)]
        wanted = [[np.array([at, at // count]) for at in range(count * size)]] * count
        found = given(ah.process_group().allgather(outputs, mine))
        equal([found] if count == 1 else found, wanted)
        equal(outputs, wanted)

    run_threads(size)(body)


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


def _random(shapes: list[tuple[int, ...]]) -> list[Array]:
    found = np.random.default_rng(42)
    return [found.random(shape, np.float32) for shape in shapes]


SQUARES: list[tuple[int, ...]] = [(5, 5), (10, 10), (15, 15)]


@pytest.mark.parametrize("size", SIZES)
def test_p037_allgather_into_tensor_coalesced(size: int) -> None:
    def body(rank: int) -> None:
        inputs = _random(SQUARES)
        mine = [x + np.float32(rank) for x in inputs]
        outputs = [np.empty((size * rows, width), np.float32) for rows, width in SQUARES]
        found = given(ah.process_group().allgather_into_tensor_coalesced(outputs, mine))
        equal(found, [np.concatenate([x + np.float32(r) for r in range(size)]) for x in inputs])
        equal(outputs, found)

    run_threads(size)(body)


# ---------------------------------------------------------------- reduce_scatter, alltoall


@on_threads(SIZE)
def test_p037_all_gather_into_tensor_coalesced_plainly(rank: int) -> None:
    inputs = _random(SQUARES)
    outputs = [np.empty((SIZE * rows, width), np.float32) for rows, width in SQUARES]
    ah.all_gather_into_tensor_coalesced(outputs, [x + np.float32(rank) for x in inputs])
    equal(outputs, [np.concatenate([x + np.float32(r) for r in range(SIZE)]) for x in inputs])


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
        (x,) = _random([(20 * size, 20)])
        output = np.empty((20, 20), np.float32)
        work = ah.process_group()._reduce_scatter_base(output, x)
        (found,) = given(work)
        np.testing.assert_allclose(found, x[20 * rank : 20 * (rank + 1)] * size, rtol=1e-6)
        assert found is output

    run_threads(size)(body)


@pytest.mark.parametrize("size", SIZES)
def test_p040_reduce_scatter_tensor_coalesced(size: int) -> None:
    def body(rank: int) -> None:
        inputs = _random([(size * rows, width) for rows, width in SQUARES])
        outputs = [np.empty(shape, np.float32) for shape in SQUARES]
        found = given(ah.process_group().reduce_scatter_tensor_coalesced(outputs, inputs))
        for output, x, (rows, _) in zip(outputs, inputs, SQUARES, strict=True):
            share = x[rank * rows : (rank + 1) * rows]
            np.testing.assert_allclose(output, share * size, rtol=1e-6)
        equal(found, outputs)

    run_threads(size)(body)


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
    """Rank r sends r rows to rank 0, and a single row to each other rank."""
    send = [rank, 1, 1, 1]
    recv = [0, 1, 2, 3] if rank == 0 else [1] * SIZE
    output, x = np.full((sum(recv), 2), -1), np.full((sum(send), 2), rank)
    given(ah.process_group().alltoall_base(output, x, recv, send))
    assert output[:, 0].tolist() == [one for one in range(SIZE) for _ in range(recv[one])]


@on_threads(2)
def test_p004_the_default_timeout_is_set_by_a_process_group() -> None:
    pg = ah.process_group(ah.new_group([0, 1], timeout=50))
    assert pg.options._timeout == timedelta(seconds=50)
    pg._set_default_timeout(timedelta(seconds=23))
    assert pg.options._timeout == timedelta(seconds=23)
    assert pg.group.timeout == 23
    before = pg._get_sequence_number_for_group()
    pg.barrier().wait(20)
    assert pg._get_sequence_number_for_group() == before + 1


# ---------------------------------------------------------------- how calls are told what to do


@on_threads(SIZE)
def test_p043_calls_on_the_callers_thread_give_the_same(rank: int) -> None:
    pg = ah.process_group()
    made, submitter = [], pg.group.here.submitter
    start = submitter.start
    submitter.start = lambda native, *more: made.append(native.kind) or start(native, *more)
    equal(given(pg.allreduce(np.array([rank]))), [np.array([6])])
    assert made == []
    for at in range(20):
        opts = with_options(c10d.AllreduceOptions, asyncOp=False, timeout=20, label="a step")
        work = pg.allreduce([np.array([rank])], opts)
        assert work.label == "a step"
        assert made == ["all_reduce"] * (at + 1)
        equal(given(work), [np.array([6])])
        opts = with_options(c10d.AllgatherOptions, asyncOp=False)
        outputs = [[np.zeros(1, np.int64) for _ in range(2 * SIZE)] for _ in range(2)]
        found = given(pg.allgather(outputs, [np.array([rank]), np.array([-rank])], opts))
        assert np.ravel(found).tolist() == [0, 0, 1, -1, 2, -2, 3, -3] * 2


@on_threads(SIZE)
def test_p048_a_process_group_of_groups_that_take_turns(rank: int) -> None:
    groups = [ah.new_group(range(SIZE)) for _ in range(2)]
    pg = ah.process_group(ah.round_robin(groups))
    xs = [np.full(3, at + rank) for at in range(10)]
    for x in xs:
        pg.allreduce([x])  # nobody keeps the work
    pg.barrier().wait(20)
    equal(xs, [np.full(3, SIZE * at + 6) for at in range(10)])
    found = given(pg.allreduce([np.array([rank]), np.array([1])]))
    equal(found, [np.array([10]), np.array([10])])
    assert sum(group.sequence for group in groups) == 10 + 2 + 1  # all of them have the barrier


@on_threads(2)
def test_p017_a_process_group_of_some_ranks_counts_from_0() -> None:
    backwards = ah.new_group([1, 0])
    pg = ah.process_group(backwards)
    assert (pg.rank(), pg.size(), pg.group_name) == (1 - ah.get_rank(), 2, backwards.name)
    x = np.array([ah.get_rank()])
    pg.broadcast(x, root=0).wait(20)
    assert x == 1


@on_threads(2)
def test_p106_a_process_group_is_of_ranks_that_are_in_it(rank: int) -> None:
    group = ah.new_group([0])
    if rank == 0:
        assert ah.process_group(group).size() == 1
    else:
        with pytest.raises(ValueError, match="does not belong to group"):
            ah.process_group(group)
    assert ah.process_group().name() == "allhands"
    with pytest.raises(TypeError, match="opts must be BroadcastOptions, not GatherOptions"):
        ah.process_group().broadcast([np.zeros(1)], c10d.GatherOptions())  # type: ignore[arg-type]
