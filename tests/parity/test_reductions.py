"""Reductions with every operation, and operations as values."""

import copy
import functools
import math
import operator
import pickle

import ml_dtypes
import numpy as np
import pytest

import allhands as ah
from allhands.testing import on_threads, run_threads

Op = ah.ReduceOp

SIMPLE = [
    (Op.SUM, lambda rank: rank + 1.0, lambda size: size * (size + 1) / 2),
    (Op.PRODUCT, lambda rank: rank + 1.0, lambda size: float(math.factorial(size))),
    (Op.MIN, lambda rank: rank + 1.0, lambda size: 1.0),
    (Op.MAX, lambda rank: rank + 1.0, lambda size: float(size)),
    (Op.AVG, lambda rank: rank + 1.0, lambda size: (size + 1) / 2),
    *((Op.BAND, lambda rank, bit=bit: rank | bit, lambda size, bit=bit: bit) for bit in (4, 8)),
    *(
        (
            op,
            lambda rank, n=n, fold=fold: functools.reduce(fold, range(rank * n, rank * n + n)),
            lambda size, n=n, fold=fold: functools.reduce(fold, range(size * n)),
        )
        for op, fold in ((Op.BOR, operator.or_), (Op.BXOR, operator.xor))
        for n in (1, 2, 3, 4)
    ),
    (Op.LAND, lambda rank: rank, lambda size: 0),
    (Op.LOR, lambda rank: 2 * rank, lambda size: 1),
    (Op.LXOR, lambda rank: 3, lambda size: size % 2),
    (Op.premul_sum(2), lambda rank: rank + 1.0, lambda size: float(size * (size + 1))),
]
"""Operation, what a rank brings, and what becomes of it."""


def array(value: float) -> np.ndarray:
    return np.array([value], np.float32 if isinstance(value, float) else np.int32)


# ---------------------------------------------------------------- P20, P26


@on_threads(4)
def test_p020_allreduce_basics_of_every_operation(rank: int):
    for op, given, wanted in SIMPLE:
        x = array(given(rank))
        assert ah.all_reduce(x, op) is None
        assert x.tolist() == [wanted(4)], op


@on_threads(3)
def test_p020_allreduce_gives_its_result_through_a_future(rank: int):
    x = np.array([rank + 1.0])
    work = ah.all_reduce(x, async_op=True)
    assert work is not None
    assert work.get_future().result(10) is x
    assert x.tolist() == [6.0]


@on_threads(3)
def test_p020_allreduce_of_several_arrays_with_every_operation(rank: int):
    for op, given, wanted in SIMPLE:
        xs = [array(given(rank)) for _ in range(3)]
        ah.all_reduce_coalesced(xs, op)
        assert [x.tolist() for x in xs] == [[wanted(3)]] * 3, op


@on_threads(4)
def test_p026_reduce_of_every_operation_to_every_root(rank: int):
    for root in range(4):
        for op, given, wanted in SIMPLE:
            x = array(given(rank))
            ah.reduce(x, root, op)
            assert x.tolist() == [wanted(4) if rank == root else given(rank)], (op, root)


# ---------------------------------------------------------------- P44


@on_threads(3)
def test_p044_all_gather_of_complex_numbers(rank: int):
    x = np.array([rank + 1j * (rank + 1), 2 - 1j * rank], np.complex64)
    outputs = [np.zeros(2, np.complex64) for _ in range(3)]
    ah.all_gather(outputs, x)
    assert [out.tolist() for out in outputs] == [
        [at + 1j * (at + 1), 2 - 1j * at] for at in range(3)
    ]


@pytest.mark.parametrize(("real", "whole"), [("f4", "c8"), ("f8", "c16")])
@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("which", [(), (1,), (0, 1, 2)])
def test_p044_real_buffers_among_complex_ones(
    real: str, whole: str, is_complex: bool, which: tuple[int, ...]
):
    def body(rank: int) -> None:
        parts = np.array([rank, -rank], real)
        x = parts.view(whole) if is_complex else parts
        rooms = [np.zeros(2, real) for _ in range(3)]
        outputs = [room.view(whole) if at in which else room for at, room in enumerate(rooms)]
        ah.all_gather(outputs, x)
        assert [room.tolist() for room in rooms] == [[at, -at] for at in range(3)]

    run_threads(3)(body)


@on_threads(2)
def test_p044_other_movements_of_real_buffers_among_complex_ones(rank: int):
    x, out = np.array([rank + 1j]), np.zeros(4)
    ah.all_gather_into_tensor(out, x)
    assert out.tolist() == [0, 1, 1, 1]
    outs = [np.zeros(2), np.zeros(1, complex)]
    ah.all_to_all(outs, [np.array([rank + 2j]), np.array([rank, 3.0])])
    assert [outs[0].tolist(), outs[1].tolist()] == (
        [[0, 2], [1 + 2j]] if rank == 0 else [[0, 3], [1 + 3j]]
    )


@on_threads(2)
def test_p044_buffers_of_other_dtypes_are_still_refused(rank: int):
    for dtype in (np.float64, np.int64, np.float32):
        outs = [np.zeros(2, dtype), np.zeros(1, np.complex64)]
        x = np.zeros(1, np.complex64) if dtype is not np.float32 else np.zeros(2, np.int32)
        with pytest.raises(ValueError, match="tensors with different dtypes"):
            ah.all_gather(outs, x)


# ---------------------------------------------------------------- P45


@on_threads(4)
def test_p045_bool_broadcast(rank: int):
    for root in range(4):
        x = np.array([True, False, True]) if rank == root else np.zeros(3, bool)
        ah.broadcast(x, root)
        assert x.dtype == bool
        assert x.tolist() == [True, False, True]


@on_threads(4)
def test_p045_bool_reductions(rank: int):
    either = (Op.SUM, Op.MAX, Op.BOR, Op.LOR)
    both = (Op.PRODUCT, Op.MIN, Op.BAND, Op.LAND)
    odd = (Op.BXOR, Op.LXOR)
    for ops, wanted in ((either, [1, 1, 0]), (both, [0, 1, 0]), (odd, [1, 0, 0])):
        for op in ops:
            for root in (None, 2):
                x = np.array([rank == 1, True, False])
                if root is None:
                    ah.all_reduce(x, op)
                else:
                    ah.reduce(x, root, op)
                if root in (None, rank):
                    assert x.dtype == bool
                    assert x.tolist() == wanted, op


@on_threads(2)
def test_p045_bool_all_gather(rank: int):
    outputs = [np.zeros(2, bool) for _ in range(2)]
    ah.all_gather(outputs, np.array([rank == 0, True]))
    assert [out.tolist() for out in outputs] == [[True, True], [False, True]]


# ---------------------------------------------------------------- P100

EVERY = [*Op, Op.premul_sum(0.5), Op.user(np.hypot)]


@pytest.mark.parametrize("op", EVERY, ids=lambda op: op.name)
def test_p100_reduce_op_isinstance(op: ah.ReduceOp):
    assert isinstance(op, ah.ReduceOp)


@pytest.mark.parametrize("op", EVERY, ids=lambda op: op.name)
def test_p100_reduce_op_copy_deepcopy_pickle(op: ah.ReduceOp):
    pickled = pickle.loads(pickle.dumps(op))  # noqa: S301
    assert copy.copy(op) == copy.deepcopy(op) == pickled == op


def test_p100_reduce_op_equality():
    assert len({*EVERY, *copy.deepcopy(EVERY)}) == len(EVERY)
    assert Op.premul_sum(2) == Op.premul_sum(2.0)
    assert Op.premul_sum(2) != Op.premul_sum(3)
    assert Op.premul_sum(1) != Op.SUM
    assert Op.SUM != "sum"


@pytest.mark.parametrize("factor", [2.0, np.float32(2), np.array(2.0), np.array([2.0])])
@on_threads(3)
def test_p100_premul_sum_factor_is_a_number_or_an_array_of_one(factor: object, rank: int):
    x = np.array([rank + 1.0, -rank])
    op = Op.premul_sum(factor)
    assert op.value == op.value.__class__(2.0)
    ah.all_reduce(x, op)
    assert x.tolist() == [12.0, -6.0]


@on_threads(3)
def test_p100_premul_sum_leaves_what_other_ranks_read_alone(rank: int):
    x = np.array([rank + 1.0])
    ah.reduce(x, 0, Op.premul_sum(10))
    assert x.tolist() == [60.0 if rank == 0 else rank + 1.0]
    inputs, out = [np.array([float(at)]) for at in range(3)], np.zeros(1)
    ah.reduce_scatter(out, inputs, Op.premul_sum(10))
    assert out.tolist() == [30.0 * rank]
    assert [one.tolist() for one in inputs] == [[0.0], [1.0], [2.0]]


@on_threads(2)
def test_p100_ranks_with_other_factors_or_functions_are_told(rank: int):
    def mine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a

    for op, name in (
        (Op.premul_sum(2 + rank), f"PREMUL_SUM({2 + rank})"),
        (Op.user(mine, f"of rank {rank}"), f"USER(of rank {rank})"),
        (Op.SUM if rank else Op.premul_sum(1), "SUM" if rank else "PREMUL_SUM(1)"),
    ):
        x = np.ones(4)
        with pytest.raises(ah.CollectiveMismatch) as found:
            ah.all_reduce(x, op)
        assert name in found.value.table[rank]
        assert x.tolist() == [1, 1, 1, 1]
    ah.barrier()  # who leaves at once may be gone before the other rank calls


@on_threads(3)
def test_p100_a_function_of_the_user_is_applied_in_the_order_of_ranks(rank: int):
    digits = Op.user(lambda a, b: 10 * a + b, "digits")
    x = np.full(50, rank + 1)
    ah.all_reduce(x, digits)
    assert x.tolist() == [123] * 50
    rooted = np.full(2, rank + 4)
    ah.reduce(rooted, 1, digits)
    assert rooted.tolist() == [456 if rank == 1 else rank + 4] * 2


@pytest.mark.parametrize("op", [Op.premul_sum(2), Op.user(np.maximum)], ids=["premul", "user"])
@on_threads(2)
def test_p100_calls_with_such_operations_can_be_prepared(op: ah.ReduceOp, rank: int):
    x = np.array([rank + 1.0])
    call = ah.all_reduce_init(x, op)
    assert call is not None
    for wanted in ([6.0], [24.0]) if op == Op.premul_sum(2) else ([2.0], [2.0]):
        call.start()
        call.wait()
        assert x.tolist() == wanted


@on_threads(3)
def test_p100_a_function_that_fails_on_one_rank_ends_the_call_on_all(rank: int):
    def failing(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if rank == 1:
            raise LookupError("no such element")
        return a + b

    x = np.arange(30) + rank
    with pytest.raises((LookupError, ah.GroupAborted), match="no such element"):
        ah.all_reduce(x, Op.user(failing))
    assert x.tolist() == [at + rank for at in range(30)]
    ah.all_reduce(x)
    assert x.tolist() == [3 * at + 3 for at in range(30)]


# ---------------------------------------------------------------- P110


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@on_threads(4)
def test_p110_avg_of_complex_numbers(dtype: str, rank: int):
    x = np.array([rank + 1j * rank, 4 - 8j], dtype)
    ah.all_reduce(x, Op.AVG)
    assert x.dtype == dtype
    assert x.tolist() == [1.5 + 1.5j, 4 - 8j]
    rooted = np.array([rank - 1j * rank], dtype)
    ah.reduce(rooted, 3, Op.AVG)
    assert rooted.tolist() == [1.5 - 1.5j if rank == 3 else rank - 1j * rank]
    share = np.zeros(1, dtype)
    ah.reduce_scatter_tensor(share, np.full(4, rank + 2j * rank, dtype), Op.AVG)
    assert share.tolist() == [1.5 + 3j]


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
@on_threads(3)
def test_p110_avg_of_integers_is_divided_towards_zero(dtype: str, rank: int):
    mine = np.array([[-3, -2, 4], [2, -2, 4], [-7, 2, 0]], dtype)[rank]  # -8, -2, 8 together
    wanted = [-2, 0, 2]
    ah.all_reduce(x := mine.copy(), Op.AVG)
    assert x.dtype == dtype
    assert x.tolist() == wanted
    ah.all_reduce(x := mine.copy(), Op.AVG, async_op=True).wait()
    assert x.tolist() == wanted
    ah.reduce(x := mine.copy(), 1, Op.AVG)
    assert x.tolist() == (wanted if rank == 1 else mine.tolist())
    share = np.zeros(3, dtype)
    ah.reduce_scatter(share, [mine, mine, mine], Op.AVG)
    assert share.tolist() == wanted
    ah.reduce_scatter_tensor(one := np.zeros(1, dtype), mine, Op.AVG)
    assert one.tolist() == wanted[rank : rank + 1]
    assert ah.reduce_scatter_v([mine[:1], mine[:2], mine], Op.AVG).tolist() == wanted[: rank + 1]
    ah.all_reduce_coalesced([x := mine.copy(), y := mine[::-1].copy()], Op.AVG)
    assert (x.tolist(), y.tolist()) == (wanted, wanted[::-1])
    with ah.coalescing():
        ah.all_reduce(x := mine.copy(), Op.AVG)
        ah.all_reduce(y := mine[1:].copy(), Op.AVG)
    assert (x.tolist(), y.tolist()) == (wanted, wanted[1:])


@on_threads(3)
def test_p110_avg_of_unsigned_integers_and_of_sums_that_wrap_around(rank: int):
    x = np.array([100, 255, rank], np.uint8)
    ah.all_reduce(x, Op.AVG)
    assert x.tolist() == [300 % 256 // 3, 765 % 256 // 3, 1]
    y = np.array([2**62, -(2**62)], np.int64)
    ah.all_reduce(y, Op.AVG)
    assert y.tolist() == [-(2**62) // 3 + 1, 2**62 // 3]


@on_threads(3)
def test_p110_avg_of_integers_of_several_arrays_a_rank_is_divided_once(rank: int):
    pg = ah.process_group()
    # -1 and 0 on each of 3 ranks: of averages at home nothing would be left, nor of -3 // 6.
    xs = [np.array([-1, 5, rank]), np.array([0, 6, -rank])]
    assert pg.allreduce(xs, op=Op.AVG).wait(20)
    assert [x.tolist() for x in xs] == [[0, 5, 0]] * 2
    xs = [np.array([-5]), np.array([-2])]
    assert pg.allreduce(xs, op=Op.AVG).wait(20)
    assert [x.tolist() for x in xs] == [[-3]] * 2
    sparse = [ah.SparseArray([[0, rank]], [-5, 1], (4,)), ah.SparseArray([[0]], [-2], (4,))]
    assert pg.allreduce(sparse, op=Op.AVG).wait(20)
    assert [one.todense().tolist() for one in sparse] == [[-20 // 6 + 1, 0, 0, 0]] * 2
    alone = ah.SparseArray([[0, 1]], [-4, 7 + rank], (4,))
    ah.all_reduce(alone, Op.AVG)
    assert alone.todense().tolist() == [-4, 8, 0, 0]


@on_threads(2)
def test_p110_avg_of_booleans_is_refused_and_nothing_is_overwritten(rank: int):
    x = np.array([True, False])
    with pytest.raises(TypeError, match=r"Cannot use ReduceOp\.AVG with Boolean inputs"):
        ah.all_reduce(x, Op.AVG)
    assert x.tolist() == [True, False]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
@on_threads(4)
def test_p110_avg_of_narrow_floats_does_not_overflow_on_the_way(dtype: type, rank: int):
    largest = ml_dtypes.finfo(dtype).max
    x = np.full(9, largest, dtype)
    ah.all_reduce(x, Op.AVG)
    assert (x == largest).all() or dtype is ml_dtypes.bfloat16  # whose sums are float32's
    ah.all_reduce(x := np.full(9, 3, dtype), Op.AVG)
    assert (x == np.asarray(3, dtype)).all()
