"""Arrays of which each rank has another size, and prefixes over ranks."""

import numpy as np
import pytest

import allhands as ah
from allhands.testing import on_threads

DTYPES = (np.float32, np.int16, np.complex128)


def block(rank: int, more: int = 0) -> np.ndarray:
    """Return a rank's array: a different shape on each rank, including 0-d and empty."""
    shape = ((), (0, 3), (2, 3), (5,))[rank % 4]
    return (np.arange(np.prod(shape, dtype=int)) + 10 * rank + more).astype(np.int64).reshape(shape)


def same(have: list[np.ndarray], want: list[np.ndarray]) -> None:
    assert [one.shape for one in have] == [one.shape for one in want]
    for one, other in zip(have, want, strict=True):
        np.testing.assert_array_equal(one, other)


@on_threads(4)
def test_all_gather_v_gives_arrays_of_any_shape(rank):
    same(ah.all_gather_v(block(rank)), [block(one) for one in range(4)])
    same(ah.all_gather_v(np.full(3, rank)), [np.full(3, one) for one in range(4)])
    work = ah.all_gather_v(block(rank), async_op=True)
    same(work.result(), [block(one) for one in range(4)])


@on_threads(3)
def test_gather_v_gives_them_to_the_root_alone(rank):
    for root in range(3):
        found = ah.gather_v(block(rank), root)
        if rank == root:
            same(found, [block(one) for one in range(3)])
        else:
            assert found is None


@on_threads(3)
def test_scatter_v_tells_dtypes_and_shapes(rank):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    for root, dtype in enumerate((np.float32, bfloat16, [("a", "<i4"), ("b", ">f8", (2,))])):
        arrays = [np.zeros((one, 2), dtype) for one in range(3)]
        for at, one in enumerate(arrays):
            one.view(np.uint8)[...] = at + 1
        found = ah.scatter_v(arrays if rank == root else None, root)
        assert found.dtype == np.dtype(dtype)
        assert found.shape == (rank, 2)
        assert found.tobytes() == arrays[rank].tobytes()


@on_threads(3)
def test_all_to_all_v_transposes_what_sizes_it_finds(rank):
    found = ah.all_to_all_v([block(rank + to, 100 * to) for to in range(3)])
    same(found, [block(one + rank, 100 * rank) for one in range(3)])


@on_threads(3)
def test_reduce_scatter_v_combines_blocks_of_unequal_sizes(rank):
    def inputs(one):
        return [np.full((to + 1, 2), 10 * one + to, np.float64) for to in range(3)]

    found = ah.reduce_scatter_v(inputs(rank), ah.ReduceOp.SUM)
    np.testing.assert_array_equal(found, sum(inputs(one)[rank] for one in range(3)))


@on_threads(3)
def test_reduce_scatter_v_of_shapes_that_differ_between_ranks_names_them_on_all(rank):
    with pytest.raises(ah.CollectiveMismatch, match="rank 1: reduce_scatter_v") as caught:
        ah.reduce_scatter_v([np.zeros(2 if rank == 1 else 3) for _ in range(3)])
    assert set(caught.value.table) == {0, 1, 2}
    np.testing.assert_array_equal(ah.reduce_scatter_v([np.ones(2)] * 3), np.full(2, 3.0))


@on_threads(4)
@pytest.mark.parametrize("length", [0, 1, 7, 5000, 300_000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_scan_and_exscan_combine_the_ranks_before(rank, length, dtype):
    def own(one):
        return ((np.arange(length) + one) % 3 + 1).astype(dtype)

    for op, ufunc in ((ah.ReduceOp.SUM, np.add), (ah.ReduceOp.PRODUCT, np.multiply)):
        x = own(rank)
        ah.scan(x, op)
        want = own(0)
        for one in range(1, rank + 1):
            want = ufunc(want, own(one))
        np.testing.assert_array_equal(x, want)
        y = own(rank)
        ah.exscan(y, op)
        want = own(0)
        for one in range(1, rank):
            want = ufunc(want, own(one))
        np.testing.assert_array_equal(y, want)


@on_threads(2)
def test_a_scan_that_is_not_defined_is_refused_before_anything_moves(rank):
    x = np.ones(3)
    with pytest.raises(TypeError, match="AVG is not defined for a scan"):
        ah.scan(x, ah.ReduceOp.AVG)
    with pytest.raises(TypeError, match="MIN of complex128"):
        ah.exscan(np.ones(2, np.complex128), ah.ReduceOp.MIN)
    ah.scan(x)
    assert (x == rank + 1).all()


@on_threads(3)
def test_a_chain_among_other_calls_is_a_mismatch_for_all_and_the_next_call_is_right(rank):
    x = np.full(4000, float(rank))
    with pytest.raises(ah.CollectiveMismatch) as caught:
        ah.barrier() if rank == 2 else ah.scan(x)
    assert caught.value.table[0].startswith("scan(float64[4000], SUM)")
    assert caught.value.table[2].startswith("barrier()")
    assert (x == rank).all()
    for _ in range(3):
        ah.scan(x)
    assert x[0] == (0, 1, 5)[rank]


@on_threads(2)
def test_a_cancelled_chain_ends_for_all_and_the_next_call_is_right(rank):
    if rank == 0:
        work = ah.scan(np.zeros(4000), async_op=True)
        work.cancel()
        with pytest.raises(ah.AllhandsError, match="cancelled"):
            work.wait()
    else:
        with pytest.raises(ah.GroupAborted):
            ah.scan(np.zeros(4000))
    x = np.ones(2)
    ah.all_reduce(x)
    assert (x == 2).all()
