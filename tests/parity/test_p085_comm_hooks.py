"""Communication hooks: arguments, accepted results, and refusals."""

import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import allhands as ah
from allhands.parallel import bucket
from allhands.testing import run_threads


def alone(body: Any) -> None:
    """Run a test in a world of one rank."""
    run_threads(1)(body)


def test_p085_future_of_the_hook_is_the_average():
    def hook(state: Any, bucket: ah.GradBucket) -> "Future[np.ndarray]":
        future: Future[np.ndarray] = Future()
        future.set_result(np.ones_like(bucket.buffer()) + state)
        return future

    def body() -> list[list[float]]:
        reducer = ah.Reducer([np.zeros((2, 2)), np.zeros(1)])
        reducer.register_comm_hook(1.0, hook)
        reducer.mark_ready(1, np.array([0.25]))
        reducer.mark_ready(0, np.full((2, 2), 0.25))
        return [one.tolist() for one in reducer.wait()]

    assert run_threads(2)(body) == [[[[2.0, 2.0], [2.0, 2.0]], [2.0]]] * 2


def test_p085_future_of_a_call_and_what_follows_it():
    """An average made of a sum; the future may give a list of one array, as in c10d."""

    def hook(state: Any, bucket: ah.GradBucket) -> "Future[Any]":
        work = ah.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: [done.value() / (2 * state)])

    def body(rank: int) -> list[float]:
        reducer = ah.Reducer([np.zeros(3)])
        reducer.register_comm_hook(ah.get_world_size(), hook)
        reducer.mark_ready(0, np.full(3, 4.0 + rank))
        return reducer.wait()[0].tolist()

    assert run_threads(2)(body) == [[2.25] * 3] * 2


def test_p085_hooks_may_go_on_from_what_hooks_give():
    """The continuation of a hook's future runs on request, as the hook itself does."""

    def hook(state: Any, bucket: ah.GradBucket) -> "Future[Any]":
        given = ah.hooks.fp16_compress(state, bucket)
        assert not given.done()
        return given.then(lambda done: done.value() * 3).then(lambda done: done.value() + 1)

    def failing(state: Any, bucket: ah.GradBucket) -> "Future[Any]":
        return ah.hooks.allreduce(state, bucket).then(lambda done: done.value() / "three")

    def body(rank: int) -> list[float]:
        broken = ah.Reducer([np.zeros(3)])
        broken.register_comm_hook(None, failing)
        broken.mark_ready(0, np.zeros(3))
        with pytest.raises(TypeError, match=r"not supported|did not contain a loop"):
            broken.wait()
        reducer = ah.Reducer([np.zeros(3)])
        reducer.register_comm_hook(None, hook)
        reducer.mark_ready(0, np.full(3, 4.0 + 2 * rank))
        return reducer.wait()[0].tolist()

    assert run_threads(2)(body) == [[16.0] * 3] * 2


def test_p085_bucket_tells_what_it_holds():
    seen: list[ah.GradBucket] = []

    def hook(state: Any, bucket: ah.GradBucket) -> "Future[np.ndarray]":
        seen.append(bucket)
        assert [one.tolist() for one in bucket.gradients()] == [[[7.0, 7.0]], [5.0]]
        bucket.gradients()[0][0, 1] = 8
        assert bucket.buffer().tolist() == [7, 8, 5]
        bucket.set_buffer(bucket.buffer() * 10)
        assert bucket.gradients()[1].tolist() == [50]
        with pytest.raises(ValueError, match="bucket 0 is float64 of shape"):
            bucket.set_buffer(np.zeros(4))
        future: Future[np.ndarray] = Future()
        future.set_result(bucket.buffer())
        return future

    def body() -> None:
        given = [np.full(1, 3.0), np.full((1, 2), 2.0)]
        reducer = ah.Reducer(given)
        reducer.register_comm_hook(None, hook)
        reducer.mark_ready(0, np.full(1, 5.0))
        reducer.mark_ready(1, np.full((1, 2), 7.0))
        assert [one.tolist() for one in reducer.wait()] == [[50.0], [[70.0, 80.0]]]
        (bucket,) = seen
        assert bucket.index() == 0
        assert bucket.is_last()
        assert bucket.indices() == (1, 0)
        assert bucket.parameters()[0] is given[1]
        assert bucket.parameters()[1] is given[0]
        assert bucket.group() is ah.default_group()

    alone(body)


def test_p086_hook_must_be_callable():
    def body() -> None:
        with pytest.raises(TypeError, match=r"Communication hook must be callable\."):
            ah.Reducer([np.zeros(1)]).register_comm_hook(None, 1)

    alone(body)


def test_p086_bucket_annotation_must_be_that_of_a_bucket():
    def wrong(state: object, bucket: int) -> "Future[np.ndarray]":
        raise AssertionError

    def right(state: object, bucket: ah.GradBucket) -> "Future[np.ndarray]":
        raise AssertionError

    def quoted(state: object, bucket: "ah.GradBucket") -> "Future[np.ndarray]":
        raise AssertionError

    def body() -> None:
        with pytest.raises(ValueError, match=r"bucket annotation should be ah\.GradBucket\."):
            ah.Reducer([np.zeros(1)]).register_comm_hook(None, wrong)
        for hook in (right, quoted, lambda state, bucket: None, ah.hooks.noop):
            ah.Reducer([np.zeros(1)]).register_comm_hook(None, hook)
        with pytest.raises(ValueError, match=r"called as hook\(state, bucket\)"):
            ah.Reducer([np.zeros(1)]).register_comm_hook(None, lambda bucket: None)

    alone(body)


def test_p086_return_annotation_must_be_a_future():
    def wrong(state: object, bucket: ah.GradBucket) -> int:
        return 1

    def body() -> None:
        message = "Communication hook: return annotation should be Future"
        with pytest.raises(ValueError, match=message):
            ah.Reducer([np.zeros(1)]).register_comm_hook(None, wrong)

    alone(body)


def test_p086_hook_must_return_a_future():
    def wrong(state, bucket):
        return 1

    def body() -> None:
        reducer = ah.Reducer([np.zeros(1), np.zeros(1, np.float32)])
        reducer.register_comm_hook(None, wrong)
        with pytest.raises(RuntimeError, match="callback must return a Future object, but got int"):
            reducer.mark_ready(1, np.zeros(1, np.float32))
        reducer.prepare_for_forward()  # the step is over

    alone(body)


def test_p086_hook_is_registered_just_once():
    def body() -> None:
        reducer = ah.Reducer([np.zeros(1)])
        reducer.register_comm_hook(None, ah.hooks.noop)
        with pytest.raises(
            RuntimeError,
            match=r"register_comm_hook or register_builtin_comm_hook can only be called once\.",
        ):
            reducer.register_comm_hook(None, ah.hooks.noop)

    alone(body)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3.0, "gives a ndarray, as the buffer of its bucket is, not float"),
        (np.zeros(3), r"float64 of shape \(2,\), .* has, not float64 of \(3,\)"),
        (np.zeros(2, np.float32), r"not float32 of \(2,\)"),
        (ah.SparseArray([[0]], [1.0], [2]), "a ndarray, .* not SparseArray"),
    ],
)
def test_p086_future_must_give_an_array_like_the_bucket(given: object, message: str):
    def hook(state: object, bucket: ah.GradBucket) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(given)
        return future

    def body() -> None:
        gradient = np.full(2, 5.0)
        reducer = ah.Reducer([np.zeros(2)])
        reducer.register_comm_hook(None, hook)
        reducer.mark_ready(0, gradient)
        with pytest.raises(RuntimeError, match=message):
            reducer.wait()
        assert gradient.tolist() == [5, 5]

    alone(body)


def test_p086_future_that_nobody_completes_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bucket, "_GRACE_SECONDS", 0.01)

    def hook(state: object, bucket: ah.GradBucket) -> "Future[Any]":
        return Future()

    def body() -> None:
        reducer = ah.Reducer([np.zeros(2)])
        reducer.register_comm_hook(None, hook)
        reducer.mark_ready(0, np.zeros(2))
        with (
            pytest.raises(TimeoutError, match="has not completed the future of bucket 0"),
            ah.deadline(0),
        ):
            reducer.wait()

    alone(body)


def test_p086_failing_hook_ends_the_step_and_leaves_the_gradients():
    """Collectives launched before have ended; the next step works."""
    has_failed = threading.Event()

    def body(rank: int) -> None:
        faults = [LookupError("no such state")]
        works: list[ah.Work] = []

        def hook(state: object, bucket: ah.GradBucket) -> "Future[Any]":
            if bucket.index() == 1 and faults:
                has_failed.set()
                raise faults.pop()
            works.append(ah.all_reduce(bucket.buffer(), ah.ReduceOp.AVG, async_op=True))
            return works[-1].get_future()

        reducer = ah.Reducer([np.zeros(2), np.zeros(2)], [[0], [1]])
        reducer.register_comm_hook(None, hook)
        first, second = np.full(2, 1.0 + rank), np.full(2, 3.0 + rank)
        if rank == 1:
            has_failed.wait()
        reducer.mark_ready(0, first)
        with pytest.raises(LookupError, match="no such state"):
            reducer.mark_ready(1, second)
        assert [work.is_success() for work in works] == [True]
        assert (first.tolist(), second.tolist()) == ([1.0 + rank] * 2, [3.0 + rank] * 2)
        reducer.mark_ready(1, second)
        reducer.mark_ready(0, first)
        assert [one.tolist() for one in reducer.wait()] == [[1.5] * 2, [3.5] * 2]

    run_threads(2)(body)
