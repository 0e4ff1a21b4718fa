"""The all_reduce of arrays of which only some elements are stored."""

import numpy as np
import pytest

import allhands as ah
from allhands.testing import on_threads

OPS = {ah.ReduceOp.SUM: sum, ah.ReduceOp.MIN: min, ah.ReduceOp.MAX: max}


def rows(rank: int, size: int, sparse_dims: int, dense_dims: int) -> ah.SparseArray:
    """Return upstream's input: rank + 1 ones along the first dimension."""
    count = rank + 1
    indices = np.vstack([np.arange(count), *[np.zeros(count, int)] * (sparse_dims - 1)])
    shape = [size, *[2] * (sparse_dims - 1), *[2] * dense_dims]
    return ah.SparseArray(indices, np.ones((count, *[2] * dense_dims)), shape)


@on_threads(4)
def test_p025_sparse_all_reduce_adds_up_as_dense_arrays_do(rank):
    for sparse_dims in (1, 2):
        for dense_dims in (0, 2):
            mine = rows(rank, 4, sparse_dims, dense_dims)
            want = sum(rows(one, 4, sparse_dims, dense_dims).todense() for one in range(4))
            work = ah.all_reduce(mine, async_op=True)
            assert work.result() is mine
            np.testing.assert_array_equal(mine.todense(), want)
            assert mine.nnz == 4


@on_threads(3)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [np.float32, np.int16, "bfloat16"])
def test_p025_sum_min_and_max_count_what_is_not_stored_as_zero(rank, op, dtype):
    pytest.importorskip("ml_dtypes")

    def dense(one):
        found = np.random.default_rng(one).integers(-3, 4, (6, 5)).astype(dtype)
        found[np.random.default_rng(one + 10).random((6, 5)) < 0.5] = 0
        return found

    mine = ah.SparseArray.from_dense(dense(rank))
    ah.all_reduce(mine, op)
    if op is ah.ReduceOp.SUM:
        want = np.add.reduce([dense(one).astype(np.float32) for one in range(3)])
    else:
        pick = np.minimum if op is ah.ReduceOp.MIN else np.maximum
        want = pick.reduce([dense(one).astype(np.float32) for one in range(3)])
    np.testing.assert_array_equal(mine.todense().astype(np.float32), want)
    assert mine.dtype == np.dtype(dtype)


@on_threads(2)
def test_elements_stored_twice_add_up_and_nothing_stored_is_zero(rank):
    mine = ah.SparseArray([[1, 1, 0]], [1.0, 2.0, 5.0], (4,)) if rank else None
    mine = mine or ah.SparseArray(np.empty((1, 0)), np.empty(0), (4,))
    ah.all_reduce(mine)
    assert mine.indices.tolist() == [[0, 1]]
    assert mine.values.tolist() == [5.0, 3.0]


@on_threads(2)
def test_other_operations_and_shapes_are_refused(rank):
    mine = ah.SparseArray([[0]], [2.0], (3,))
    with pytest.raises(TypeError, match="unsupported reduction operation: PRODUCT"):
        ah.all_reduce(mine, ah.ReduceOp.PRODUCT)
    with pytest.raises(ah.CollectiveMismatch):
        ah.all_reduce(ah.SparseArray([[0]], [2.0], (3 + rank,)))
    with pytest.raises(ah.CollectiveMismatch):
        ah.all_reduce(mine if rank else np.ones(3))
    assert mine.values.tolist() == [2.0]
    for bad in (
        lambda: ah.SparseArray([0], [2.0], (3,)),
        lambda: ah.SparseArray([[3]], [2.0], (3,)),
        lambda: ah.SparseArray([[-1]], [2.0], (3,)),
        lambda: ah.SparseArray([[0]], [2.0, 3.0], (3,)),
        lambda: ah.SparseArray([[0], [0]], [2.0], (3,)),
    ):
        with pytest.raises(ValueError, match=r"indices|values"):
            bad()


@on_threads(2)
@pytest.mark.parametrize("form", ["coo", "csr", "csc"])
def test_sparse_arrays_of_scipy_are_reduced_in_place(rank, form):
    scipy = pytest.importorskip("scipy.sparse")
    mine = scipy.coo_array(([1.0, 2.0], ([0, rank], [1, 2])), shape=(3, 4)).asformat(form)
    ah.all_reduce(mine)
    want = np.zeros((3, 4))
    want[0, 1], want[0, 2], want[1, 2] = 2, 2, 2
    np.testing.assert_array_equal(mine.toarray(), want)
    with pytest.raises(TypeError, match="format 'lil' cannot take a result"):
        ah.all_reduce(mine.tolil())
