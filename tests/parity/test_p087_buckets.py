"""Buckets: layout, and the steps of a reducer in sequence."""

from itertools import groupby
from typing import Any

import numpy as np
import pytest

import allhands as ah
from allhands.parallel.bucket_layout import NO_LIMIT, compute_bucket_assignment_by_size
from allhands.testing import run_threads
from support.arrays import small_network

MIXED = {"w1": "float32", "b1": "float32"}


def by_dtype(parameters: dict[str, np.ndarray]) -> list[list[int]]:
    arrays = list(parameters.values())
    grouped = groupby(range(len(arrays)), key=lambda place: arrays[place].dtype)
    return [list(places) for _, places in grouped]


def test_p087_one_dtype_in_one_bucket():
    def body(rank: int) -> list[float]:
        reducer = ah.Reducer([np.zeros(2), np.zeros(3)], [[0, 1]])
        reducer.mark_ready(0, np.full(2, float(rank)))
        reducer.mark_ready(1, np.full(3, 3.0 * rank))
        return [one[0] for one in reducer.wait()]

    assert run_threads(2)(body) == [[0.5, 1.5]] * 2


def test_p087_several_dtypes_in_one_bucket_are_refused():
    def body() -> None:
        with pytest.raises(RuntimeError, match=r"bucket 0 of several or none \(float32, float64\)"):
            ah.Reducer(small_network.parameters(**MIXED), [range(6)])

    run_threads(1)(body)


def test_p087_buckets_for_each_dtype():
    def body(rank: int) -> None:
        given = small_network.parameters(**MIXED)
        buckets = by_dtype(given)
        assert buckets == [[0, 1], [2, 3, 4, 5]]
        reducer = ah.Reducer(given, buckets)
        for name, gradient in small_network.gradients(given, *small_network.share(0, rank, 2)):
            reducer.mark_ready(name, gradient)
        averages = dict(zip(given, reducer.wait(), strict=True))
        for name, wanted in small_network.gradients(given, *small_network.batch(0)):
            assert averages[name].dtype == given[name].dtype
            np.testing.assert_allclose(averages[name], wanted, rtol=1e-5, atol=1e-7)

    run_threads(2)(body)


@pytest.mark.parametrize(
    ("buckets", "error"),
    [
        ([[0]], "goes into exactly one bucket"),
        ([[0, 1], [1]], "goes into exactly one bucket"),
        ([[0, 1, 2]], "goes into exactly one bucket"),
        ([], "goes into exactly one bucket"),
    ],
)
def test_p087_buckets_hold_every_parameter_once(buckets: list[list[int]], error: str):
    def body() -> None:
        with pytest.raises(ValueError, match=error):
            ah.Reducer([np.zeros(1), np.zeros(1)], buckets)

    run_threads(1)(body)


# ---------------------------------------------------------------- step by step


def step(reducer: ah.Reducer, given: dict[str, np.ndarray], number: int, without: str = "") -> Any:
    """Make one step on the whole batch; return the averages by name."""
    reducer.prepare_for_forward()
    found = small_network.gradients(given, *small_network.batch(number))
    reducer.prepare_for_backward([without] if without else [])
    for name, gradient in found:
        if name != without:
            reducer.mark_ready(name, gradient)
    return dict(zip(given, reducer.wait(), strict=True))


def test_p088_forward_and_backward():
    def body() -> None:
        given = small_network.parameters(**MIXED)
        found = step(ah.Reducer(given, by_dtype(given)), given, 0)
        for name, wanted in small_network.gradients(given, *small_network.batch(0)):
            np.testing.assert_array_equal(found[name], wanted)

    run_threads(1)(body)


def test_p088_unused_parameters_have_no_gradient():
    def body() -> None:
        given = small_network.parameters(**MIXED)
        reducer = ah.Reducer(given, by_dtype(given), find_unused_parameters=True)
        found = step(reducer, given, 0, without="w3")
        assert [name for name, one in found.items() if one is None] == ["w3"]

    run_threads(1)(body)


def test_p088_optimizer_loop_equals_that_of_one_process():
    """Of three steps the first leaves a parameter out."""

    def body(rank: int) -> dict[str, np.ndarray]:
        given = small_network.parameters()
        reducer = ah.Reducer(given, find_unused_parameters=True)
        for number in range(3):
            without = "b3" if number == 0 else ""
            found = step(reducer, given, number, without)
            small_network.descend(
                given, {name: one for name, one in found.items() if one is not None}
            )
            assert (found["b3"] is None) == (number == 0)
        return given

    def alone() -> dict[str, np.ndarray]:
        given = small_network.parameters()
        for number in range(3):
            found = dict(small_network.gradients(given, *small_network.batch(number)))
            if number == 0:
                del found["b3"]
            small_network.descend(given, found)
        return given

    wanted = alone()
    for found in run_threads(2)(body):
        for name in wanted:
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-14)


def test_p088_every_step_is_waited_for():
    def body() -> None:
        reducer = ah.Reducer([np.zeros(1)])
        reducer.mark_ready(0, np.ones(1))
        with pytest.raises(RuntimeError, match="Expected to have finished reduction in the prior"):
            reducer.prepare_for_forward()
        with pytest.raises(RuntimeError, match="finished reduction in the prior"):
            reducer.register_comm_hook(None, ah.hooks.noop)
        reducer.wait()
        reducer.prepare_for_forward()

    run_threads(1)(body)


def test_p088_wait_names_what_is_missing_and_goes_on():
    def body() -> None:
        reducer = ah.Reducer({"a": np.zeros(1), "b": np.zeros(1), "c": np.zeros(1)})
        reducer.mark_ready("b", np.ones(1))
        with pytest.raises(RuntimeError, match="parameters 'a', 'c' have no gradient yet"):
            reducer.wait()
        reducer.mark_ready("a", np.ones(1))
        reducer.mark_ready("c", np.ones(1))
        assert [one.tolist() for one in reducer.wait()] == [[1.0]] * 3
        with pytest.raises(RuntimeError, match="parameter 'a' cannot be left out"):
            reducer.prepare_for_backward(["a"])

    run_threads(1)(body)


def test_p088_gradients_are_marked_once():
    def body() -> None:
        reducer = ah.Reducer([np.zeros(1), np.zeros(1)], find_unused_parameters=True)
        reducer.prepare_for_backward([0])
        with pytest.raises(RuntimeError, match="parameter 0 was said to be unused"):
            reducer.mark_ready(0, np.ones(1))
        reducer.mark_ready(1, np.ones(1))
        with pytest.raises(RuntimeError, match="Expected to mark a variable ready only once"):
            reducer.mark_ready(1, np.ones(1))
        with pytest.raises(RuntimeError, match="parameter 1 is not unused: it is ready"):
            reducer.prepare_for_backward([1])
        assert reducer.wait()[0] is None

    run_threads(1)(body)


def test_p088_gradients_are_like_their_parameters():
    def body() -> None:
        reducer = ah.Reducer([np.zeros((2, 3), np.float32)])
        with pytest.raises(ValueError, match=r"float32 of \(2, 3\): they must be alike"):
            reducer.mark_ready(0, np.zeros((3, 2), np.float32))
        with pytest.raises(ValueError, match="they must be alike"):
            reducer.mark_ready(0, np.zeros((2, 3)))
        with pytest.raises(ValueError, match="must be C-contiguous"):
            reducer.mark_ready(0, np.zeros((3, 2), np.float32).T)
        with pytest.raises(TypeError, match="gradient must be an array unless"):
            reducer.mark_ready(0)
        with pytest.raises(TypeError, match=r"must be a numpy\.ndarray, not list"):
            reducer.mark_ready(0, [[0.0] * 3] * 2)
        with pytest.raises(RuntimeError, match="only with gradient_as_bucket_view=True"):
            reducer.view(0)
        with pytest.raises(ValueError, match="no parameter has the place 1"):
            reducer.mark_ready(1, np.zeros(1))
        reducer.prepare_for_forward()  # no step has begun

    run_threads(1)(body)


def test_p088_parameters_are_floats_and_the_same_on_all_ranks():
    def body(rank: int) -> str:
        with pytest.raises(TypeError, match="the mean of int64 arrays would lose its fraction"):
            ah.Reducer([np.zeros(1, np.int64)])
        with pytest.raises(ValueError, match="there are no parameters"):
            ah.Reducer([])
        with pytest.raises(ValueError, match="of a Reducer of rank 1 differ from those of rank 0"):
            ah.Reducer([np.zeros(3 + (rank == 1))])
        return "compared"

    assert run_threads(3)(body) == ["compared"] * 3


def test_p088_lost_rank_ends_the_step_and_leaves_the_gradients():
    def body(rank: int) -> str:
        reducer = ah.Reducer([np.zeros(2), np.zeros(2)], [[0], [1]])
        if rank == 1:
            ah.abort("it has lost its data")
            return ""
        gradient = np.full(2, 7.0)
        reducer.mark_ready(0, gradient)
        reducer.mark_ready(1, np.zeros(2))
        with pytest.raises(ah.GroupAborted, match="it has lost its data") as it:
            reducer.wait()
        reducer.prepare_for_forward()  # the step is over
        assert gradient.tolist() == [7, 7]
        return type(it.value).__name__

    assert run_threads(2)(body) == ["GroupAborted", ""]


# ---------------------------------------------------------------- by size


def arrays(*given: tuple[int, str]) -> list[np.ndarray]:
    return [np.empty(count, dtype) for count, dtype in given]


ALTERNATING = arrays(*[(50, "float32"), (25, "float64")] * 3)


def test_p099_one_limit_one_dtype():
    given = arrays((100, "float32"), (200, "float32"), (100, "float32"), (50, "float32"))
    assert compute_bucket_assignment_by_size(given, [400]) == (
        [[0], [1], [2], [3]],
        [400, 400, 400, 400],
    )


def test_p099_one_limit_several_dtypes():
    assert compute_bucket_assignment_by_size(ALTERNATING, [400]) == (
        [[0, 2], [1, 3], [4], [5]],
        [400, 400, 400, 400],
    )


def test_p099_several_limits_one_dtype():
    given = arrays(*[(10, "float32")] * 4)
    assert compute_bucket_assignment_by_size(given, [40, 80]) == ([[0], [1, 2], [3]], [40, 80, 80])


def test_p099_several_limits_several_dtypes():
    assert compute_bucket_assignment_by_size(ALTERNATING, [200, 400]) == (
        [[0], [1], [2, 4], [3, 5]],
        [200, 200, 400, 400],
    )


def test_p099_sparse_gradients_are_alone():
    given = arrays(*[(10, "float32")] * 4)
    assert compute_bucket_assignment_by_size(given, [1000], alone=[1]) == (
        [[0, 2, 3], [1]],
        [1000, NO_LIMIT],
    )


def test_p099_a_reducer_fills_its_buckets_from_the_last_parameter():
    def body() -> list[tuple[int, ...]]:
        seen: list[tuple[int, ...]] = []

        def hook(state: None, bucket: ah.GradBucket) -> Any:
            seen.append(bucket.indices())
            return ah.hooks.noop(None, bucket)

        mib = 1 / (1 << 20)
        reducer = ah.Reducer(ALTERNATING, first_bucket_mb=200 * mib, bucket_cap_mb=400 * mib)
        reducer.register_comm_hook(None, hook)
        for place, array in enumerate(ALTERNATING):
            reducer.mark_ready(place, np.zeros_like(array))
        reducer.wait()
        return seen

    assert run_threads(1)(body) == [[(5,), (4,), (3, 1), (2, 0)]]


@pytest.mark.parametrize(("given", "limits"), [([], [1]), (ALTERNATING, []), (ALTERNATING, [0])])
def test_p099_nothing_to_cut_is_refused(given: list[np.ndarray], limits: list[int]):
    with pytest.raises(ValueError, match=r"arrays|limits"):
        compute_bucket_assignment_by_size(given, limits)


# ---------------------------------------------------------------- with Join


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}, {"static_graph": True}])
def test_reducers_join(options: dict[str, bool]):
    """Ranks without inputs count with gradients of zeros, and end with the last one's values."""

    def body(rank: int) -> tuple[list[float], list[float]]:
        given = [np.zeros(2), np.zeros(1, np.float32)]
        reducer = ah.Reducer(given, **options)
        steps = []
        with ah.Join([reducer]):
            for _ in range(2 * rank):
                reducer.mark_ready(1, np.full(1, 3.0, np.float32))
                reducer.mark_ready(0, np.full(2, 6.0))
                averages = reducer.wait()
                for one, average in zip(given, averages, strict=True):
                    one -= average
                steps.append(float(averages[0][0]))
        return steps, [float(one[0]) for one in given]

    last = [-(4 + 4 + 2 + 2), -(2 + 2 + 1 + 1)]
    assert run_threads(3)(body) == [
        ([], last),
        ([4.0, 4.0], last),
        ([4.0, 4.0, 2.0, 2.0], last),
    ]


def test_shadowed_steps_leave_the_gradients_of_who_has_joined():
    def body(rank: int) -> list[float]:
        reducer = ah.Reducer([np.zeros(1)], gradient_as_bucket_view=True)
        with ah.Join([reducer]):
            for number in range(1 + rank):
                reducer.view(0)[:] = 2.0 + number
                reducer.mark_ready(0)
                reducer.wait()
        return reducer.gradients[0].tolist()

    assert run_threads(2)(body) == [[2.0], [1.5]]


def test_reducer_of_a_group_averages_over_its_ranks():
    def body(rank: int) -> float:
        pair = ah.new_group([2, 1])
        if rank == 0:
            with pytest.raises(ValueError, match="this rank is not in"):
                ah.Reducer([np.zeros(1)], process_group=pair)
            return -1
        reducer = ah.Reducer([np.zeros(1)], process_group=pair, static_graph=True)
        reducer.mark_ready(0, np.full(1, float(rank)))
        reducer.wait()
        return float(reducer.gradients[0][0])

    assert run_threads(3)(body) == [-1, 1.5, 1.5]


def test_p104_shared_weights_are_marked_when_their_gradient_is_whole():
    """A parameter in two places has one gradient, the sum: it is marked once."""

    def body(rank: int) -> None:
        w = np.random.default_rng(0).normal(size=(5, 5))
        x = np.random.default_rng(1).normal(size=(8, 5))[rank::2]
        reducer = ah.Reducer([w])
        hidden = x @ w
        slope = np.full((len(x), 5), 1 / len(x))
        gradient = hidden.T @ slope  # of the last use; the first is still to come
        gradient += x.T @ (slope @ w.T)
        reducer.mark_ready(0, gradient)
        whole = np.random.default_rng(1).normal(size=(8, 5))
        ones = np.full((8, 5), 1 / 8)
        wanted = (whole @ w).T @ ones + whole.T @ (ones @ w.T)
        np.testing.assert_allclose(reducer.wait()[0], wanted, rtol=1e-12)

    run_threads(2)(body)


def test_parameters_may_have_no_elements_or_no_dimensions():
    def body(rank: int) -> list[list[float]]:
        reducer = ah.Reducer([np.zeros((0, 3)), np.zeros(2), np.zeros(())])
        reducer.mark_ready(0, np.zeros((0, 3)))
        reducer.mark_ready(1, np.full(2, float(rank)))
        reducer.mark_ready(2, np.array(4.0 * rank))
        return [one.tolist() for one in reducer.wait()]

    assert run_threads(2)(body) == [[[], [0.5, 0.5], 2.0]] * 2
