"""Reducer: averages of gradients present on all ranks, on some, and on none."""

from typing import Any

import numpy as np
import pytest

import allhands as ah
from allhands.testing import run_threads
from support.arrays import small_network

SIZE = 4
STEPS = 5
SMALL = {"bucket_cap_mb": 0.0003, "first_bucket_mb": 0.0001}
"""Limits by which the network of `small_network` has three buckets."""


def trained(rank: int, **options: Any) -> small_network.Arrays:
    """Train on this rank's rows of each batch."""
    given = small_network.parameters()
    reducer = ah.Reducer(given, **options)
    for step in range(STEPS):
        for name, gradient in small_network.gradients(
            given, *small_network.share(step, rank, SIZE)
        ):
            if options.get("gradient_as_bucket_view"):
                reducer.view(name)[...] = gradient
                reducer.mark_ready(name)
            else:
                reducer.mark_ready(name, gradient)
        small_network.descend(given, dict(zip(given, reducer.wait(), strict=True)))
    buckets = 3 if "bucket_cap_mb" in options else 1
    assert ah.default_group().sequence == 1 + STEPS * buckets
    return given


def assert_trained_as_alone(found: list[small_network.Arrays]) -> None:
    alone = small_network.trained_alone(STEPS)
    for name, wanted in alone.items():
        np.testing.assert_allclose(found[0][name], wanted, rtol=1e-12, atol=1e-14)
        for other in found[1:]:
            np.testing.assert_array_equal(other[name], found[0][name])


@pytest.mark.parametrize("limits", [{}, SMALL], ids=["one bucket", "buckets"])
def test_p079_data_parallel_training_equals_training_in_one_process(limits: dict[str, float]):
    assert_trained_as_alone(run_threads(SIZE)(lambda rank: trained(rank, **limits)))


@pytest.mark.parametrize("limits", [{}, SMALL], ids=["one bucket", "buckets"])
def test_p079_gradients_as_bucket_views(limits: dict[str, float]):
    options = {**limits, "gradient_as_bucket_view": True}
    assert_trained_as_alone(run_threads(SIZE)(lambda rank: trained(rank, **options)))


def test_p079_average_is_where_the_gradient_was():
    """In the given array, or in the bucket; other parameters keep their gradients."""

    def body(rank: int) -> None:
        given = {"a": np.zeros((2, 3)), "b": np.zeros(2, np.float32)}
        a, b = np.full((2, 3), float(rank)), np.full(2, 10.0 * rank, np.float32)
        copying = ah.Reducer(given)
        copying.mark_ready("b", b)
        copying.mark_ready("a", a)
        averages = copying.wait()
        assert averages[0] is a
        assert averages[1] is b
        assert a.tolist() == [[0.5] * 3] * 2
        assert b.tolist() == [5, 5]
        viewing = ah.Reducer(given, gradient_as_bucket_view=True)
        fresh = np.full(2, 3.0 + rank, np.float32)
        viewing.mark_ready("b", fresh)
        viewing.view("a")[...] = rank
        viewing.mark_ready("a")
        averages = viewing.wait()
        assert averages[1] is viewing.view("b")
        assert averages[1].tolist() == [3.5, 3.5]
        assert fresh.tolist() == [3 + rank] * 2
        assert averages[0] is viewing.view("a")
        assert averages[0].tolist() == [[0.5] * 3] * 2

    run_threads(2)(body)


def test_p079_buckets_are_under_way_while_gradients_are_still_to_come():
    """A full bucket is averaged before `wait`, with all ranks in the average."""

    def body(rank: int) -> None:
        works: list[ah.Work] = []

        def hook(state: None, bucket: ah.GradBucket) -> Any:
            work = ah.all_reduce(bucket.buffer(), ah.ReduceOp.AVG, async_op=True)
            works.append(work)
            return work.get_future()

        reducer = ah.Reducer([np.zeros(4), np.zeros(4)], [[1], [0]])
        reducer.register_comm_hook(None, hook)
        reducer.mark_ready(1, np.full(4, float(rank)))
        works[0].wait()
        assert works[0].result().tolist() == [0.5] * 4
        reducer.mark_ready(0, np.full(4, 2.0 * rank))
        assert len(works) == 2
        assert [one.tolist() for one in reducer.wait()] == [[1.0] * 4, [0.5] * 4]

    run_threads(2)(body)


def test_p079_buckets_begin_in_one_order_whatever_becomes_ready_first():
    def body(rank: int) -> tuple[list[int], list[list[float]]]:
        order: list[int] = []

        def hook(state: None, bucket: ah.GradBucket) -> Any:
            order.append(bucket.index())
            assert bucket.is_last() == (bucket.index() == 2)
            return ah.hooks.allreduce(None, bucket)

        reducer = ah.Reducer([np.zeros(1)] * 3, [[0], [1], [2]])
        reducer.register_comm_hook(None, hook)
        for place in [0, 1, 2] if rank == 0 else [2, 1, 0]:
            reducer.mark_ready(place, np.array([float(place + rank)]))
            if rank == 1:
                assert order == ([] if place else [0, 1, 2])
        return order, [one.tolist() for one in reducer.wait()]

    assert run_threads(2)(body) == [([0, 1, 2], [[0.5], [1.5], [2.5]])] * 2


# ---------------------------------------------------------------- unused parameters


class Tasks:
    """Three tasks: the first for the first rank, the second for the rest, the third unused."""

    def __init__(self, **options: Any) -> None:
        self.views = options.get("gradient_as_bucket_view", False)
        self.reducer = ah.Reducer(
            {"t0": np.zeros(2), "t1": np.zeros(2), "unused": np.zeros(2)},
            find_unused_parameters=not options.get("static_graph", False),
            **options,
        )

    def step(self, used: dict[str, float]) -> list[list[float] | None]:
        for name, value in used.items():
            self.reducer.mark_ready(name, np.full(2, value))
        return [None if one is None else one.tolist() for one in self.reducer.wait()]


OPTIONS = [
    {},
    {"gradient_as_bucket_view": True},
    {"static_graph": True},
    {"static_graph": True, "gradient_as_bucket_view": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["copied", "view", "static", "static view"])
def test_p080_locally_unused_get_the_average_and_globally_unused_nothing(options: dict[str, bool]):
    def body(rank: int) -> None:
        tasks = Tasks(**options)
        for step in range(3):
            used = {"t0": 4.0 + step} if rank == 0 else {"t1": 8.0}
            t0 = (4.0 + step) / SIZE
            assert tasks.step(used) == [[t0] * 2, [6.0] * 2, None]

    run_threads(SIZE)(body)


@pytest.mark.parametrize("options", OPTIONS[:2], ids=["copied", "view"])
def test_p080_globally_unused_keep_the_gradient_that_they_had(options: dict[str, bool]):
    def body(rank: int) -> None:
        tasks = Tasks(**options)
        first = tasks.step({"t0": 1.0, "t1": 2.0 + rank, "unused": 0.1 * (rank + 1)})
        kept = tasks.reducer.gradients[2]
        before = kept.copy()
        second = tasks.step({"t0": 5.0} if rank else {"t1": 4.0})
        assert first[0] == [1.0, 1.0]
        assert second == [[2.5] * 2, [2.0] * 2, before.tolist()]
        assert tasks.reducer.gradients[2] is kept
        assert kept.tobytes() == before.tobytes()

    run_threads(2)(body)


def test_p080_average_of_a_parameter_unused_here_is_an_array_of_its_own():
    def body(rank: int) -> None:
        tasks = Tasks()
        tasks.step({"t0": 2.0} if rank == 0 else {"t1": 4.0})
        averages = tasks.reducer.gradients[:2]
        tasks.step({"t0": 8.0, "t1": 8.0})
        assert [one.tolist() for one in averages] == [[1.0] * 2, [2.0] * 2]

    run_threads(2)(body)


def test_p080_bucket_of_parameters_said_to_be_unused_waits_for_nobody():
    def body(rank: int) -> None:
        begun: list[int] = []

        def hook(state: None, bucket: ah.GradBucket) -> Any:
            begun.append(bucket.index())
            return ah.hooks.allreduce(None, bucket)

        reducer = ah.Reducer([np.zeros(1)] * 3, [[2], [1], [0]], find_unused_parameters=True)
        reducer.register_comm_hook(None, hook)
        reducer.prepare_for_backward([2, 1])
        assert begun == [0, 1]
        reducer.mark_ready(0, np.array([float(rank)]))
        assert [None if one is None else one[0] for one in reducer.wait()] == [0.5, None, None]

    run_threads(2)(body)


def test_p080_static_graph_agrees_on_unused_parameters_once():
    def body(rank: int) -> list[int]:
        tasks = Tasks(static_graph=True)
        calls = [ah.default_group().sequence]
        for _ in range(3):
            tasks.step({"t0": 1.0} if rank == 0 else {"t1": 1.0})
            calls.append(ah.default_group().sequence)
        return np.diff(calls).tolist()

    # One bucket; at first also who uses what, and the order for new buckets.
    assert run_threads(2)(body) == [[3, 1, 1]] * 2


def test_p080_static_graph_holds_every_step_to_the_first():
    def body(rank: int) -> None:
        tasks = Tasks(static_graph=True)
        tasks.step({"t0": 1.0})
        with pytest.raises(RuntimeError, match=r"parameter 't1' .* not used in the first"):
            tasks.reducer.mark_ready("t1", np.zeros(2))
        with pytest.raises(RuntimeError, match="parameter 't0' have no gradient yet"):
            tasks.reducer.wait()
        assert tasks.step({"t0": 3.0}) == [[3.0] * 2, None, None]

    run_threads(2)(body)


def test_p080_static_graph_fills_buckets_in_the_order_of_the_first_rank():
    def body(rank: int) -> list[tuple[int, ...]]:
        seen: list[tuple[int, ...]] = []

        def hook(state: None, bucket: ah.GradBucket) -> Any:
            seen.append(bucket.indices())
            return ah.hooks.allreduce(None, bucket)

        one_each = {"bucket_cap_mb": 1e-6, "first_bucket_mb": 1e-6}
        reducer = ah.Reducer([np.zeros(2)] * 3, static_graph=True, **one_each)
        reducer.register_comm_hook(None, hook)
        for _ in range(2):
            for place in [1, 0, 2] if rank == 0 else [2, 0, 1]:
                reducer.mark_ready(place, np.full(2, float(place * 10 + rank)))
            assert [one[0] for one in reducer.wait()] == [0.5, 10.5, 20.5]
        return seen

    assert run_threads(2)(body) == [[(2,), (1,), (0,), (1,), (0,), (2,)]] * 2


def test_p081_no_rank_but_one_uses_all_parameters():
    """A rank with all parameters in use still takes part in the search for unused parameters."""

    def body(rank: int) -> list[list[float]]:
        reducer = ah.Reducer([np.zeros(1), np.zeros(1)], find_unused_parameters=True)
        reducer.mark_ready(1, np.array([8.0]))
        if rank == 0:
            reducer.mark_ready(0, np.array([4.0]))
        return [one.tolist() for one in reducer.wait()]

    assert run_threads(SIZE)(body) == [[[1.0], [8.0]]] * SIZE


@pytest.mark.parametrize("finds", [False, True], ids=["all used", "unused"])
def test_p082_outputs_may_be_ignored(finds: bool):
    """Steps without gradients need no call and no peer, before steps with gradients."""

    def body(rank: int) -> None:
        given = small_network.parameters()
        reducer = ah.Reducer(given, find_unused_parameters=finds)
        before = ah.default_group().sequence
        for _ in range(4):
            reducer.prepare_for_forward()
        assert ah.default_group().sequence == before
        for step in range(4):
            reducer.prepare_for_forward()
            reducer.prepare_for_backward(["b2"] if finds else [])
            for name, gradient in small_network.gradients(
                given, *small_network.share(step, rank, 2)
            ):
                if not (finds and name == "b2"):
                    reducer.mark_ready(name, gradient)
            averages = dict(zip(given, reducer.wait(), strict=True))
            whole = dict(small_network.gradients(given, *small_network.batch(step)))
            for name, wanted in whole.items():
                if finds and name == "b2":
                    assert averages[name] is None
                else:
                    np.testing.assert_allclose(averages[name], wanted, rtol=1e-10, atol=1e-14)

    run_threads(2)(body)


def test_p083_ignored_parameters_are_left_alone():
    """Such as a shard, different on each rank."""

    def body(rank: int) -> None:
        shard = np.full(3 + rank, float(rank))
        given = {"w": np.zeros(2), "shard": shard, "b": np.zeros(1, np.float32)}
        reducer = ah.Reducer(given, ignore=["shard"], static_graph=True)
        for _ in range(2):
            reducer.mark_ready("w", np.full(2, float(rank)))
            reducer.mark_ready("b", np.full(1, 4.0 * rank, np.float32))
            w, ignored, b = reducer.wait()
            assert (w.tolist(), ignored, b.tolist()) == ([0.5] * 2, None, [2.0])
        assert shard.tolist() == [float(rank)] * (3 + rank)
        with pytest.raises(ValueError, match="parameter 'shard' is ignored"):
            reducer.mark_ready("shard", shard)
        with pytest.raises(ValueError, match="no parameter has the name 'shart'"):
            ah.Reducer(given, ignore=["shart"])

    run_threads(2)(body)
