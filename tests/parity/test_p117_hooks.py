"""Hooks: averages, traffic, and residuals for later steps."""

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import allhands as ah
from allhands.testing import run_threads

SIZE = 4
SHAPES = [(16, 12), (12,), (8, 3, 4), ()]
COUNT = sum(math.prod(shape) for shape in SHAPES)

Gradients = list[np.ndarray]


def gradients(rank: int, step: int = 0, dtype: Any = np.float32) -> Gradients:
    random = np.random.default_rng([rank, step])
    found = [random.normal(size=shape) for shape in SHAPES]
    if np.dtype(dtype).kind == "c":
        found = [one * np.exp(1j * random.uniform(0, 6, one.shape)) for one in found]
    return [np.array(one, dtype) for one in found]


def mean(step: int = 0, size: int = SIZE, dtype: Any = np.float32) -> Gradients:
    """Return the exact average of a step."""
    everybody = [gradients(rank, step, dtype) for rank in range(size)]
    return [
        np.mean([one.astype(complex if dtype is np.complex64 else float) for one in of_all], 0)
        for of_all in zip(*everybody, strict=True)
    ]


def averaged(
    hook: Callable[..., Any],
    state: Callable[[], Any] = lambda: None,
    steps: int = 1,
    dtype: Any = np.float32,
    given: Callable[..., Gradients] = gradients,
    size: int = SIZE,
) -> list[list[Gradients]]:
    """Average the gradients of some steps; return those of each step, the same on all ranks."""

    def body(rank: int) -> list[Gradients]:
        reducer = ah.Reducer(given(rank, 0, dtype))
        reducer.register_comm_hook(state(), hook)
        return [step(reducer, given(rank, at, dtype)) for at in range(steps)]

    found = run_threads(size)(body)
    for other in found[1:]:
        for mine, theirs in zip(found[0], other, strict=True):
            for one, another in zip(mine, theirs, strict=True):
                np.testing.assert_array_equal(one, another)
    return found[0]


def step(reducer: ah.Reducer, given: Gradients) -> Gradients:
    for place in reversed(range(len(given))):
        reducer.mark_ready(place, given[place])
    return [one.copy() for one in reducer.wait()]


def flat(given: Gradients) -> np.ndarray:
    return np.concatenate([one.reshape(-1) for one in given])


def calls_of(hook: Callable[..., Any], state: Callable[[], Any]) -> list[tuple[str, int, str]]:
    """Return a bucket's calls: operation, bytes and label of each."""

    def body(rank: int) -> list[tuple[str, int, str]]:
        reducer = ah.Reducer(gradients(rank))
        reducer.register_comm_hook(state(), hook)
        before = len(ah.flight_recorder())
        step(reducer, gradients(rank))
        return [(one.operation, one.nbytes, one.label) for one in ah.flight_recorder()[before:]]

    return run_threads(SIZE)(body)[0]


def close(found: Gradients, wanted: Gradients, tolerance: float) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


# ---------------------------------------------------------------- without memory


def test_p117_noop_leaves_every_rank_its_own():
    def body(rank: int) -> bool:
        reducer = ah.Reducer(gradients(rank))
        reducer.register_comm_hook(None, ah.hooks.noop)
        before = ah.default_group().sequence
        found = step(reducer, gradients(rank))
        assert ah.default_group().sequence == before
        return all(map(np.array_equal, found, gradients(rank)))

    assert run_threads(2)(body) == [True, True]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64])
def test_p117_allreduce_averages(dtype: Any):
    (found,) = averaged(ah.hooks.allreduce, dtype=dtype)
    assert {one.dtype for one in found} == {np.dtype(dtype)}
    close(found, mean(dtype=dtype), 2e-3 if dtype is np.float16 else 1e-6)


def test_p117_hooks_average_over_the_group_of_their_state():
    def body(rank: int, hook: Callable[..., Any]) -> list[float]:
        pairs = [ah.new_group([0, 1]), ah.new_group([2, 3])]
        reducer = ah.Reducer([np.zeros(2, np.float32)])
        reducer.register_comm_hook(pairs[rank // 2], hook)
        reducer.mark_ready(0, np.full(2, 2.0 * rank, np.float32))
        return reducer.wait()[0].tolist()

    for hook in (ah.hooks.allreduce, ah.hooks.fp16_compress):
        found = run_threads(SIZE)(lambda rank, hook=hook: body(rank, hook))
        assert found == [[1.0] * 2] * 2 + [[5.0] * 2] * 2


@pytest.mark.parametrize(
    ("hook", "bits"), [(ah.hooks.fp16_compress, 11), (ah.hooks.bf16_compress, 8)]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_p117_half_hooks_average_in_half_the_bytes(hook: Any, bits: int, dtype: Any):
    (found,) = averaged(hook, dtype=dtype)
    assert {one.dtype for one in found} == {np.dtype(dtype)}
    close(found, mean(dtype=dtype), 3 * 2.0**-bits)
    rounded = flat(found).astype(np.float32).view(np.uint32)
    assert not (rounded & ((1 << (24 - bits)) - 1)).any()  # they have travelled in so few bits
    assert calls_of(hook, lambda: None) == [("all_reduce", 2 * COUNT, "bucket 0")]


def test_p117_half_hooks_do_not_overflow_before_an_average_does():
    def large(rank: int, step: int, dtype: Any) -> Gradients:
        return [np.full(3, 60000.0, np.float32)]

    (found,) = averaged(ah.hooks.fp16_compress, given=large)
    np.testing.assert_allclose(found[0], 60000, rtol=1e-3)


@pytest.mark.parametrize("dtype", [np.float16, np.complex64])
@pytest.mark.parametrize(
    ("hook", "state"),
    [
        (ah.hooks.fp16_compress, lambda: None),
        (ah.hooks.bf16_compress, lambda: None),
        (ah.hooks.int8, ah.hooks.Int8State),
        (ah.hooks.top_k, lambda: ah.hooks.TopKState(ratio=1)),
        (ah.hooks.power_sgd, lambda: ah.hooks.PowerSGDState(None, 12, 0, min_compression_rate=0.1)),
    ],
)
def test_p117_gradients_of_other_dtypes_are_averaged_all_the_same(
    hook: Any, state: Any, dtype: Any
):
    (found,) = averaged(hook, state, dtype=dtype)
    assert {one.dtype for one in found} == {np.dtype(dtype)}
    close(found, mean(dtype=dtype), 2e-2 if dtype is np.float16 else 1e-6)


def test_p117_bf16_compress_says_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)

    def body() -> None:
        reducer = ah.Reducer([np.zeros(2)])
        reducer.register_comm_hook(None, ah.hooks.bf16_compress)
        with pytest.raises(ImportError, match="pip install ml_dtypes, or use fp16_compress"):
            reducer.mark_ready(0, np.zeros(2))

    run_threads(1)(body)


# ---------------------------------------------------------------- int8


def test_p117_int8_averages_within_its_steps():
    (found,) = averaged(ah.hooks.int8, lambda: ah.hooks.Int8State(chunk=16))
    largest = max(float(np.abs(flat(gradients(rank))).max()) for rank in range(SIZE))
    # Half a step of what each rank sends, and half a step of the average.
    close(found, mean(), largest / 127)
    assert not np.array_equal(flat(found), flat(mean()))


def test_p117_int8_sends_a_byte_for_each_element_and_its_scales():
    shard = -(-COUNT // SIZE)
    row = shard + 4 * -(-shard // 32)
    assert calls_of(ah.hooks.int8, lambda: ah.hooks.Int8State(chunk=32)) == [
        ("all_to_all_single", SIZE * row, "bucket 0"),
        ("all_gather_into_tensor", row, "bucket 0"),
    ]


def test_p117_int8_of_gradients_that_are_no_numbers_recovers():
    def with_one_infinite(rank: int, at: int, dtype: Any) -> Gradients:
        found = [np.ones(64, np.float32)]
        if at == 0 and rank == 1:
            found[0][5] = np.inf
        return found

    first, second = averaged(
        ah.hooks.int8, lambda: ah.hooks.Int8State(chunk=8), steps=2, given=with_one_infinite
    )
    assert np.isnan(first[0][:8]).all()
    np.testing.assert_allclose(first[0][8:], 1, rtol=1e-2)
    np.testing.assert_allclose(second[0], 1, rtol=2e-2)


def test_p117_int8_of_zeros_is_zero():
    (found,) = averaged(ah.hooks.int8, ah.hooks.Int8State, given=lambda *_: [np.zeros(5)])
    assert found[0].tolist() == [0.0] * 5


# ---------------------------------------------------------------- top_k


def test_p117_top_k_sends_the_largest_of_every_rank():
    def apart(rank: int, at: int, dtype: Any) -> Gradients:
        found = np.full(10, 0.5, np.float32)
        found[rank], found[9] = -8.0, 4.0
        return [found]

    (found,) = averaged(ah.hooks.top_k, lambda: ah.hooks.TopKState(ratio=0.2), given=apart)
    assert found[0].tolist() == [-2.0] * SIZE + [0.0] * 5 + [4.0]


def test_p117_top_k_sends_a_place_and_a_value_for_each():
    wanted = [("all_gather_into_tensor", 8 * math.ceil(0.03 * COUNT), "bucket 0")]
    assert calls_of(ah.hooks.top_k, lambda: ah.hooks.TopKState(ratio=0.03)) == wanted
    wanted = [("all_gather_into_tensor", 8, "bucket 0")]
    assert calls_of(ah.hooks.top_k, lambda: ah.hooks.TopKState(ratio=1e-9)) == wanted


def test_p117_top_k_of_all_is_the_average():
    (found,) = averaged(ah.hooks.top_k, lambda: ah.hooks.TopKState(ratio=1))
    close(found, mean(), 1e-6)


# ---------------------------------------------------------------- power_sgd


def low_rank(rank: int, at: int, dtype: Any) -> Gradients:
    """Of all ranks together a matrix of two independent columns, and a vector."""
    random = np.random.default_rng(7)
    left, right = random.normal(size=(20, 2)), random.normal(size=(2, 15))
    weights = np.diag([1.0 + rank, 2.0 - rank])
    return [(left @ weights @ right).astype(np.float32), np.full(3, float(rank), np.float32)]


def never_early(**options: Any) -> Callable[[], ah.hooks.PowerSGDState]:
    return lambda: ah.hooks.PowerSGDState(start_iteration=0, **options)


@pytest.mark.parametrize("columns", [2, 3])
def test_p117_power_sgd_of_low_rank_is_the_average(columns: int):
    (found,) = averaged(ah.hooks.power_sgd, never_early(rank=columns), given=low_rank)
    wanted = np.mean([low_rank(rank, 0, None)[0] for rank in range(SIZE)], axis=0)
    np.testing.assert_allclose(found[0], wanted, rtol=0, atol=1e-4)
    assert found[1].tolist() == [1.5] * 3


def test_p117_power_sgd_follows_a_gradient_to_its_best_approximation():
    """Subspace iteration: from step to step, unless begun anew in each."""
    matrix = np.random.default_rng(3).normal(size=(16, 12)) + 0.0
    left, values, right = np.linalg.svd(matrix)
    values = values * 0.6 ** np.arange(12)
    matrix = (left[:, :12] * values) @ right
    best = math.sqrt((values[2:] ** 2).sum())

    def error(**options: Any) -> float:
        state = never_early(rank=2, use_error_feedback=False, **options)
        found = averaged(ah.hooks.power_sgd, state, 12, np.float64, lambda *_: [matrix.copy()], 1)
        return float(np.linalg.norm(found[-1][0] - matrix))

    assert best <= error() < 1.001 * best
    assert error(warm_start=False) > 1.02 * best


def test_p117_power_sgd_sends_factors_and_the_rest_as_it_is():
    rank = 2
    factors = [(16, 12), (8, 12)]
    rest = 12 + 1
    assert calls_of(ah.hooks.power_sgd, never_early(rank=rank)) == [
        ("all_reduce", 4 * (sum(rank * rows for rows, _ in factors) + rest), "bucket 0"),
        ("all_reduce", 4 * sum(rank * columns for _, columns in factors), "bucket 0"),
    ]


def test_p117_power_sgd_leaves_small_matrices_alone():
    whole = [("all_reduce", 4 * COUNT, "bucket 0")]
    assert calls_of(ah.hooks.power_sgd, never_early(rank=4)) == whole
    assert len(calls_of(ah.hooks.power_sgd, never_early(rank=4, min_compression_rate=1.1))) == 2


def test_p117_power_sgd_begins_with_plain_averages():
    def body(rank: int) -> list[str]:
        reducer = ah.Reducer(gradients(rank), [[3, 2], [1, 0]])
        state = ah.hooks.PowerSGDState(start_iteration=2)
        reducer.register_comm_hook(state, ah.hooks.power_sgd)
        ways = []
        for at in range(4):
            exact = flat(mean(at, 2))
            found = flat(step(reducer, gradients(rank, at)))
            ways.append("exact" if np.allclose(found, exact, atol=1e-6) else "factors")
        assert state.iteration == 4
        return ways

    assert run_threads(2)(body) == [["exact"] * 2 + ["factors"] * 2] * 2


# ---------------------------------------------------------------- error feedback

WITH_MEMORY = [
    pytest.param(ah.hooks.int8, lambda: ah.hooks.Int8State(chunk=64), id="int8"),
    pytest.param(ah.hooks.top_k, lambda: ah.hooks.TopKState(ratio=0.1), id="top_k"),
    pytest.param(ah.hooks.power_sgd, never_early(rank=1), id="power_sgd"),
]


def missing(hook: Any, state: Any, *steps: int) -> list[float]:
    """Return the distance of the averages' sum from the gradients' sum after some steps."""

    def alike(rank: int, at: int, dtype: Any) -> Gradients:
        return gradients(rank, 0, dtype)

    found = [flat(one) for one in averaged(hook, state, max(steps), np.float64, alike, size=2)]
    wanted = flat(mean(size=2, dtype=np.float64))
    return [float(np.abs(sum(found[:count]) - count * wanted).max()) for count in steps]


@pytest.mark.parametrize(("hook", "state"), WITH_MEMORY)
def test_p117_what_is_left_out_is_sent_later(hook: Any, state: Any):
    """After any number of steps, no more is missing than after a few."""
    few, many = missing(hook, state, 12, 48)
    assert many < 1.6 * few
    assert few > 1e-6  # else there is nothing to see


def test_p117_power_sgd_without_error_feedback_loses_what_it_leaves_out():
    state = never_early(rank=1, use_error_feedback=False)
    few, many = missing(ah.hooks.power_sgd, state, 12, 48)
    assert many > 3 * few


@pytest.mark.parametrize(
    ("hook", "state"),
    [
        *WITH_MEMORY,
        pytest.param(
            ah.hooks.power_sgd,
            lambda: ah.hooks.PowerSGDState(rank=1, start_iteration=3),
            id="power_sgd that has just begun",
        ),
    ],
)
def test_p117_saved_state_goes_on_as_the_one_it_was_saved_from(hook: Any, state: Any):
    def body(rank: int) -> None:
        first, second, fresh = state(), state(), state()
        reducers = [ah.Reducer(gradients(rank)) for _ in range(3)]
        for reducer, one in zip(reducers, (first, second, fresh), strict=True):
            reducer.register_comm_hook(one, hook)
        for at in range(3):
            step(reducers[0], gradients(rank, at))
        saved = first.state_dict()
        wanted = step(reducers[0], gradients(rank, 3))
        second.load_state_dict(saved)
        assert flat(step(reducers[1], gradients(rank, 3))).tobytes() == flat(wanted).tobytes()
        assert flat(step(reducers[2], gradients(rank, 3))).tobytes() != flat(wanted).tobytes()
        # What was saved has not changed meanwhile.
        second.load_state_dict(saved)
        assert flat(step(reducers[1], gradients(rank, 3))).tobytes() == flat(wanted).tobytes()

    run_threads(2)(body)


def test_p117_buckets_have_memories_of_their_own():
    """A refilled bucket begins without residuals."""

    def body(rank: int) -> list[tuple[int, ...]]:
        small = {"bucket_cap_mb": 1e-6, "first_bucket_mb": 1e-6}
        state = ah.hooks.TopKState(ratio=0.5)
        reducer = ah.Reducer([np.zeros(2), np.zeros(2), np.zeros(2)], static_graph=True, **small)
        reducer.register_comm_hook(state, ah.hooks.top_k)
        for _ in range(3):
            for place in (1, 0, 2):
                reducer.mark_ready(place, np.array([10.0, 4 + 0.4 * place]))
            found = [one.tolist() for one in reducer.wait()]
        # What was left out has grown larger than what comes new, and is sent in its stead.
        np.testing.assert_allclose(found, [[0, 12], [0, 13.2], [0, 14.4]])
        return sorted(state.state_dict()["residuals"])

    assert run_threads(2)(body) == [[(0,), (1,), (2,)]] * 2


# ---------------------------------------------------------------- post_local_sgd


def test_p117_post_local_sgd_averages_over_all_and_later_over_the_subgroup():
    def body(rank: int) -> list[float]:
        pairs = [ah.new_group([0, 1]), ah.new_group([2, 3])]
        state = ah.hooks.PostLocalSGDState(subgroup=pairs[rank // 2], start_iteration=2)
        reducer = ah.Reducer([np.zeros(1), np.zeros(1)], [[1], [0]])
        reducer.register_comm_hook(state, ah.hooks.post_local_sgd)
        found = []
        for _ in range(4):
            reducer.mark_ready(1, np.array([float(rank)]))
            reducer.mark_ready(0, np.array([float(rank)]))
            one, other = reducer.wait()
            assert one[0] == other[0]
            found.append(float(one[0]))
        assert state.state_dict() == {"iteration": 4}
        return found

    assert run_threads(4)(body) == [[1.5, 1.5, 0.5, 0.5]] * 2 + [[1.5, 1.5, 2.5, 2.5]] * 2


def test_p117_post_local_sgd_without_a_subgroup_goes_its_own_way():
    def body(rank: int) -> float:
        state = ah.hooks.PostLocalSGDState(start_iteration=5)
        state.load_state_dict({"iteration": 5})
        reducer = ah.Reducer([np.zeros(1)])
        reducer.register_comm_hook(state, ah.hooks.post_local_sgd)
        reducer.mark_ready(0, np.array([float(rank)]))
        return float(reducer.wait()[0][0])

    assert run_threads(2)(body) == [0.0, 1.0]


def test_p117_averager_averages_parameters_from_time_to_time():
    def body(rank: int) -> tuple[list[bool], int]:
        averager = ah.hooks.PeriodicModelAverager(period=3, warmup_steps=4)
        given = [np.zeros((2, 2)), np.zeros(3, np.float32), np.zeros(1)]
        before, averaged = ah.default_group().sequence, []
        for _ in range(9):
            for one in given:
                one[...] = rank
            averaged.append(averager.average_parameters(given))
            wanted = 0.5 if averaged[-1] else rank
            assert all((one == wanted).all() for one in given)
        return averaged, ah.default_group().sequence - before

    due = [at in (4, 7) for at in range(9)]
    assert run_threads(2)(body) == [(due, 2 * 2)] * 2  # a call for each dtype


def test_p117_averager_refuses_before_it_counts():
    def body() -> None:
        averager = ah.hooks.PeriodicModelAverager(period=1)
        with pytest.raises(TypeError, match="the mean of int64 arrays would lose its fraction"):
            averager.average_parameters([np.zeros(1), np.zeros(1, np.int64)])
        with pytest.raises(ValueError, match=r"parameters\[0\] must be C-contiguous"):
            averager.average_parameters([np.zeros((2, 2))[:, 0]])
        assert averager.step == 0

    run_threads(1)(body)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ah.hooks.Int8State(chunk=0), "at least one element, not for 0"),
        (lambda: ah.hooks.TopKState(ratio=0), "above 0 up to 1, not 0"),
        (lambda: ah.hooks.TopKState(ratio=1.5), "above 0 up to 1, not 1.5"),
        (lambda: ah.hooks.PowerSGDState(rank=0), "rank must be at least 1"),
        (lambda: ah.hooks.PowerSGDState(start_iteration=-1), "start_iteration at least 0"),
        (lambda: ah.hooks.PowerSGDState(min_compression_rate=0), "min_compression_rate"),
        (lambda: ah.hooks.PostLocalSGDState(start_iteration=-1), "start_iteration must be"),
        (lambda: ah.hooks.PeriodicModelAverager(period=0), "period must be at least 1"),
        (lambda: ah.hooks.PeriodicModelAverager(1, warmup_steps=-1), "warmup_steps at least 0"),
    ],
)
def test_p117_states_refuse_what_makes_no_sense(make: Callable[[], object], message: str):
    with pytest.raises(ValueError, match=message):
        make()
