"""Sparse gradients: rows of a table, of which each rank uses some."""

from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import allhands as ah
from allhands.testing import run_threads

SIZE = 3
ROWS, WIDTH, EACH = 10, 4, 5


def looked_up(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows of the table an input takes, and the slope at each."""
    random = np.random.default_rng(1337)
    taken = random.integers(0, ROWS, SIZE * EACH)
    return taken[rows], random.normal(size=(SIZE * EACH, WIDTH))[rows]


def gradient(rows: np.ndarray) -> ah.SparseArray:
    """Return the gradient of the mean over some of the inputs; rows may come twice."""
    taken, slopes = looked_up(rows)
    return ah.SparseArray(taken[np.newaxis], slopes / len(rows), (ROWS, WIDTH))


def whole() -> np.ndarray:
    return gradient(np.arange(SIZE * EACH)).todense()


def share(rank: int) -> np.ndarray:
    return np.arange(rank * EACH, (rank + 1) * EACH)


def averaged(hook: Any = None, state: Any = None, **options: Any) -> list[Any]:
    """Average a sparse and a dense gradient in each of two steps; return the last averages."""

    def body(rank: int) -> Any:
        given = {"table": np.zeros((ROWS, WIDTH)), "bias": np.zeros(WIDTH)}
        reducer = ah.Reducer(given, sparse=["table"], **options)
        if hook is not None:
            reducer.register_comm_hook(state, hook)
        for step in range(2):
            mine = gradient(share(rank))
            reducer.mark_ready("bias", np.full(WIDTH, float(rank + step)))
            reducer.mark_ready("table", mine)
            table, bias = reducer.wait()
            assert table is mine
            assert bias.tolist() == [1.0 + step] * WIDTH
        return table

    return run_threads(SIZE)(body)


@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}],
    ids=["copied", "view", "static"],
)
def test_p084_average_of_sparse_gradients_is_that_of_the_whole_batch(options: dict[str, bool]):
    for found in averaged(**options):
        np.testing.assert_allclose(found.todense(), whole(), rtol=1e-12, atol=1e-15)
        stored = found.indices[0].tolist()
        assert stored == sorted(set(looked_up(np.arange(SIZE * EACH))[0].tolist()))


def test_p085_sparse_gradients_by_a_hook():
    def hook(state: Any, bucket: ah.GradBucket) -> "Future[Any]":
        if not bucket.is_sparse():
            return ah.hooks.allreduce(None, bucket)
        assert bucket.gradients() == [bucket.buffer()]
        summed = ah.all_reduce(bucket.buffer(), async_op=True).get_future()

        def divide(done: "Future[Any]") -> ah.SparseArray:
            total = done.result()
            return ah.SparseArray(total.indices, total.values / SIZE, total.shape)

        return summed.then(divide)

    for found in averaged(hook):
        np.testing.assert_allclose(found.todense(), whole(), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("hook", "state"),
    [
        (ah.hooks.fp16_compress, None),
        (ah.hooks.int8, ah.hooks.Int8State()),
        (ah.hooks.top_k, ah.hooks.TopKState(ratio=1)),
        (ah.hooks.power_sgd, ah.hooks.PowerSGDState(start_iteration=0)),
    ],
)
def test_p117_sparse_gradients_are_not_compressed(hook: Any, state: Any):
    """Sparse gradients are sent uncompressed, beside compressed dense gradients."""

    def body(rank: int) -> np.ndarray:
        reducer = ah.Reducer([np.zeros((ROWS, WIDTH))], sparse=[0])
        reducer.register_comm_hook(state, hook)
        reducer.mark_ready(0, gradient(share(rank)))
        return reducer.wait()[0].todense()

    for found in run_threads(SIZE)(body):
        np.testing.assert_allclose(found, whole(), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("views", [False, True], ids=["copied", "view"])
def test_p084_rank_without_a_sparse_gradient_counts_with_none(views: bool):
    def body(rank: int) -> list[Any]:
        reducer = ah.Reducer(
            [np.zeros((ROWS, WIDTH)), np.zeros((2, 1))],
            sparse=[0, 1],
            find_unused_parameters=True,
            gradient_as_bucket_view=views,
        )
        for _ in range(2):
            if rank == 1:
                reducer.mark_ready(0, ah.SparseArray([[7]], [[6.0] * WIDTH], (ROWS, WIDTH)))
            table, other = reducer.wait()
        return [table.indices.tolist(), table.values.tolist(), other]

    assert run_threads(2)(body) == [[[[7]], [[3.0] * WIDTH], None]] * 2


def test_p084_failed_step_leaves_a_sparse_gradient_as_it_was():
    """Although its own bucket has been averaged."""

    def hook(state: Any, bucket: ah.GradBucket) -> "Future[Any]":
        if bucket.is_sparse():
            return ah.hooks.allreduce(None, bucket)
        raise LookupError("no such state")

    def body(rank: int) -> None:
        reducer = ah.Reducer([np.zeros(1), np.zeros((ROWS, WIDTH))], [[1], [0]], sparse=[1])
        reducer.register_comm_hook(None, hook)
        mine = gradient(share(rank))
        indices, values = mine.indices, mine.values
        before = values.copy()
        reducer.mark_ready(1, mine)
        with pytest.raises(LookupError, match="no such state"):
            reducer.mark_ready(0, np.zeros(1))
        assert mine.indices is indices
        assert mine.values is values
        assert values.tobytes() == before.tobytes()

    run_threads(2)(body)


def test_p084_sparse_gradients_are_rows_of_their_parameter():
    def body() -> None:
        reducer = ah.Reducer([np.zeros((3, 2))], sparse=[0], gradient_as_bucket_view=True)
        with pytest.raises(TypeError, match=r"must be an ah\.SparseArray, not ndarray"):
            reducer.mark_ready(0, np.zeros((3, 2)))
        with pytest.raises(ValueError, match="they must be alike"):
            reducer.mark_ready(0, ah.SparseArray([[0]], [[1.0, 1, 1]], (3, 3)))
        with pytest.raises(ValueError, match=r"must store whole rows, .* not of \(2, 1\)"):
            reducer.mark_ready(0, ah.SparseArray([[0], [1]], [1.0], (3, 2)))
        with pytest.raises(TypeError, match="gradient must be an array"):
            reducer.mark_ready(0)
        with pytest.raises(RuntimeError, match="the gradient of parameter 0 is sparse"):
            reducer.view(0)
        with pytest.raises(RuntimeError, match="parameter 0 is sparse: it cannot share bucket 0"):
            ah.Reducer([np.zeros(2), np.zeros(2)], [[0, 1]], sparse=[0])
        with pytest.raises(ValueError, match="parameter 0 has no rows"):
            ah.Reducer([np.zeros(())], sparse=[0])
        dense = ah.Reducer([np.zeros((3, 2))])
        with pytest.raises(TypeError, match=r"must be a numpy\.ndarray, not SparseArray"):
            dense.mark_ready(0, ah.SparseArray([[0]], [[1.0, 1]], (3, 2)))

    run_threads(1)(body)
