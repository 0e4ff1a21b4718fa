"""Many arrays in few messages."""

import numpy as np
import pytest

import allhands as ah
from allhands.collectives.coalesced import make_buckets
from allhands.testing import assert_equal_on_rank, on_threads, run_threads


def arrays(rank: int) -> list[np.ndarray]:
    """Arrays of several dtypes and shapes, including 0-d and empty arrays."""
    half = pytest.importorskip("ml_dtypes").bfloat16
    dtypes = (np.float32, half, np.int64, np.float32, np.float16, np.int64)
    shapes = ((60,), (50, 2), (), (0, 3), (77,), (5, 5))
    return [
        np.full(shape, rank + at + 1, dtype)
        for at, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]


def equal(have: list[np.ndarray], want: list[np.ndarray]) -> None:
    assert [one.tobytes() for one in have] == [one.tobytes() for one in want]


@on_threads(4)
def test_p050_broadcast_coalesced_of_mixed_dtypes_from_each_root(rank):
    for root in range(4):
        for size in (1, 256, 1 << 20):
            mine = arrays(rank)
            ah.broadcast_coalesced(mine, root, buffer_size=size)
            equal(mine, arrays(root))


def test_p050_buckets_hold_one_dtype_and_no_more_than_their_size():
    small = [np.zeros(60, np.float32)] * 3
    assert make_buckets([*small, np.zeros(1, np.int8), small[0]], 480) == [[0, 1], [2, 4], [3]]
    assert make_buckets([np.zeros(100)] * 2, 8) == [[0], [1]]


@on_threads(3)
def test_all_reduce_coalesced_reduces_each(rank):
    mine = arrays(rank)
    ah.default_group().all_reduce_coalesced(mine).wait()
    for at, one in enumerate(mine):
        assert (one == sum(other + at + 1 for other in range(3))).all()
    work = ah.all_reduce_coalesced([mine[0]], ah.ReduceOp.MAX, async_op=True)
    assert work.result()[0] is mine[0]


@on_threads(3)
def test_all_gather_forms_place_every_ranks_arrays(rank):
    outputs = [[np.empty_like(one) for one in arrays(0)] for _ in range(3)]
    ah.default_group().all_gather_coalesced(outputs, arrays(rank)).wait()
    for other in range(3):
        equal(outputs[other], arrays(other))
    whole = [np.empty((3, *one.shape), one.dtype) for one in arrays(0)]
    ah.all_gather_into_tensor_coalesced(whole, arrays(rank))
    for other in range(3):
        equal([one[other] for one in whole], arrays(other))


@on_threads(3)
def test_reduce_scatter_tensor_coalesced_gives_each_its_share(rank):
    inputs = [np.stack([one * (place + 1) for place in range(3)]) for one in arrays(rank)]
    outputs = [np.empty_like(one) for one in arrays(0)]
    ah.reduce_scatter_tensor_coalesced(outputs, inputs)
    for at, one in enumerate(outputs):
        assert (one == (rank + 1) * sum(other + at + 1 for other in range(3))).all()


@on_threads(2)
def test_wrong_arguments_are_refused_and_nothing_is_touched(rank):
    good = np.ones(3)
    with pytest.raises(ValueError, match="share memory"):
        ah.all_reduce_coalesced([good, good[1:]])
    with pytest.raises(ValueError, match="arrays is empty"):
        ah.all_reduce_coalesced([])
    with pytest.raises(TypeError, match=r"Cannot use ReduceOp\.BAND"):
        ah.all_reduce_coalesced([np.ones(2), good], ah.ReduceOp.BAND)
    with pytest.raises(ValueError, match="buffer_size must be at least one byte"):
        ah.broadcast_coalesced([good], 0, buffer_size=0)
    with pytest.raises(ValueError, match="2 ranks times the 3 of inputs"):
        ah.all_gather_into_tensor_coalesced([np.ones(5)], [good])
    assert (good == 1).all()
    ah.barrier()


@on_threads(3)
def test_calls_of_a_block_are_made_together_at_its_end(rank):
    xs = [np.full(4, float(rank + at)) for at in range(5)]
    before = ah.default_group().sequence
    with ah.coalescing():
        for x in xs:
            assert ah.all_reduce(x) is None
        assert (xs[0] == rank).all()
        assert ah.default_group().sequence == before
        y = np.array([rank])
        ah.broadcast(y, 1)
        out, mine = np.empty((3, 2)), np.full(2, float(rank))
        work = ah.all_gather_into_tensor(out, mine, async_op=True)
        ah.scan(y)
    assert ah.default_group().sequence == before + 4
    for at, x in enumerate(xs):
        assert (x == sum(other + at for other in range(3))).all()
    assert y[0] == rank + 1
    assert work.is_success()
    assert out[:, 0].tolist() == [0, 1, 2]
    assert work.result() is out


@on_threads(3)
def test_calls_of_a_block_on_the_same_memory_are_made_one_after_the_other(rank):
    x = np.full(6, float(rank + 1))
    before = ah.default_group().sequence
    with ah.coalescing():
        ah.all_reduce(x)
        ah.all_reduce(x[2:])  # of what the first one gives
        ah.all_reduce(np.ones(3))
        ah.all_reduce(x[:2])
    assert x.tolist() == [18.0] * 6
    assert ah.default_group().sequence == before + 2
    out, more = np.zeros((3, 6)), np.zeros((3, 6))
    with ah.coalescing():
        ah.all_gather_into_tensor(out, x)
        ah.all_gather_into_tensor(more, out[0])
    assert (more == 18).all()


@on_threads(3)
def test_parts_of_an_array_travel_together_and_one_that_comes_again_after_them(rank):
    x = np.full(12, float(rank + 1))
    parts = np.split(x, 4)
    before = ah.default_group().sequence
    for order in (parts, parts[::-1], [parts[2], parts[0], parts[3], parts[1]]):
        x[:] = rank + 1
        with ah.coalescing():
            for part in order:
                ah.all_reduce(part)
        assert x.tolist() == [6.0] * 12
    assert ah.default_group().sequence == before + 3
    with ah.coalescing():
        for part in (*parts, parts[0]):
            ah.all_reduce(part)
    assert x.tolist() == [54.0] * 3 + [18.0] * 9
    assert ah.default_group().sequence == before + 5


NEEDS_RESULTS = {
    "wait": lambda: ah.all_reduce(np.ones(2), async_op=True).wait(),
    "result": lambda: ah.all_reduce(np.ones(2), async_op=True).result(),
    "all_gather_v": lambda: ah.all_gather_v(np.ones(2)),
    "all_gather_object": lambda: ah.all_gather_object([None] * 2, 1),
    "split_group": lambda: ah.split_group(0),
    "functional": lambda: ah.functional.all_gather_tensor(np.ones((2, 2)), 1),
    "functional, coalesced": lambda: ah.functional.all_reduce_coalesced([np.ones(2)]),
    "Reducer": lambda: ah.Reducer([np.ones(2)]),
    "compare": lambda: assert_equal_on_rank(1, 1),
    "average": lambda: ah.hooks.PeriodicModelAverager(1, 0).average_parameters([np.ones(2)]),
}


@pytest.mark.parametrize("name", NEEDS_RESULTS)
def test_what_needs_its_results_at_once_is_refused_in_a_block_and_none_is_made(name):
    def body():
        x, before = np.ones(2), ah.default_group().sequence
        with pytest.raises(RuntimeError, match="outside of"), ah.coalescing():
            ah.all_reduce(x) or NEEDS_RESULTS[name]()
        assert ah.default_group().sequence == before
        assert (x == 1).all()
        NEEDS_RESULTS[name]()  # and works there

    run_threads(2)(body)


@on_threads(2)
def test_a_step_of_a_reducer_and_a_join_do_not_begin_in_a_block(rank):
    reducer = ah.Reducer([np.ones(2)])
    with pytest.raises(RuntimeError, match="a step of a Reducer needs"), ah.coalescing():
        reducer.mark_ready(0, np.ones(2))
    with pytest.raises(RuntimeError, match="Join needs"), ah.coalescing(), ah.Join([reducer]):
        pass
    reducer.mark_ready(0, np.full(2, float(rank)))
    assert (reducer.wait()[0] == 0.5).all()


@on_threads(3)
def test_a_block_may_end_before_its_calls_do_and_one_that_raises_makes_none(rank):
    x = np.ones(2)
    with ah.coalescing(async_ops=True) as coalesced:
        ah.all_reduce(x)
        ah.all_reduce(x.reshape(1, 2).copy())
    assert len(coalesced.works) == 2
    coalesced.wait(10)
    assert (x == 3).all()
    with pytest.raises(ValueError, match="read-only"), ah.coalescing():
        ah.all_reduce(x) or ah.all_reduce(np.frombuffer(b"1234", np.uint8))
    twice = pytest.raises(RuntimeError, match="being collected already")
    with twice, ah.coalescing(), ah.coalescing():
        pass
    ah.all_reduce(x)
    assert (x == 9).all()


@on_threads(3)
def test_every_reduction_by_an_operation_of_the_users_in_a_block_is_made(rank):
    last = ah.ReduceOp.user(lambda one, other: other)
    first, second = np.full(4, rank), np.full(3, rank)
    with ah.coalescing():
        ah.all_reduce(first, last)
        ah.all_reduce(second, last)
    assert (first.tolist(), second.tolist()) == ([2] * 4, [2] * 3)
