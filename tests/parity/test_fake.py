"""Fake groups: any rank of any world in one process, with calls complete at once."""

from collections.abc import Iterator

import numpy as np
import pytest

import allhands as ah
from allhands import ReduceOp

PLACES = [(0, 1), (1, 2), (0, 3), (6, 7), (999, 1000)]


@pytest.fixture(params=PLACES, ids=lambda place: f"{place[0]}of{place[1]}")
def place(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """Yield a rank and a size, in a fake world."""
    rank, size = request.param
    ah.init_process_group(backend="fake", rank=rank, world_size=size)
    yield rank, size
    if ah.is_initialized():
        ah.destroy_process_group()


@pytest.fixture
def fake() -> Iterator[None]:
    """Be rank 1 of a fake world of 4."""
    ah.init_process_group(backend="fake", rank=1, world_size=4)
    yield
    if ah.is_initialized():
        ah.destroy_process_group()


def test_p095_rank_and_size_are_what_was_asked_for(place: tuple[int, int]):
    assert (ah.get_rank(), ah.get_world_size()) == place
    ah.barrier()
    ah.monitored_barrier()


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.float16, np.complex128])
def test_p095_all_reduce(place: tuple[int, int], dtype: type):
    x = np.full((3, 3), 2, dtype)
    ah.all_reduce(x)
    assert (x.shape, x.dtype) == ((3, 3), dtype)
    np.testing.assert_array_equal(x, np.full((3, 3), 2 * place[1], dtype))


@pytest.mark.parametrize(
    ("op", "want"),
    [
        (ReduceOp.MIN, lambda x, size: x),
        (ReduceOp.MAX, lambda x, size: x),
        (ReduceOp.BAND, lambda x, size: x),
        (ReduceOp.BOR, lambda x, size: x),
        (ReduceOp.BXOR, lambda x, size: x * (size % 2)),
        (ReduceOp.PRODUCT, lambda x, size: x**size),
        (ReduceOp.SUM, lambda x, size: x * size),
    ],
)
def test_p095_all_reduce_as_if_others_brought_the_same(place, op, want):
    x = np.arange(6).reshape(2, 3)
    before = x.copy()
    ah.all_reduce(x, op)
    np.testing.assert_array_equal(x, want(before, place[1]))


def test_p095_average_is_this_ranks_array_bit_for_bit(place: tuple[int, int]):
    x = np.random.default_rng(0).random(100).astype(np.float16) * 60000
    before = x.copy()
    ah.all_reduce(x, ReduceOp.AVG)
    np.testing.assert_array_equal(x, before)


def test_p095_average_of_integers_is_that_of_a_sum_that_wraps_around(place: tuple[int, int]):
    _, size = place
    x = np.array([3, -7, 100], np.int8)
    total = [int(one) for one in (np.array([3, -7, 100]) * size).astype(np.int8)]
    ah.all_reduce(x, ReduceOp.AVG)
    assert x.tolist() == [int(one / size) for one in total]


def test_p095_reduce(place: tuple[int, int]):
    rank, size = place
    for root in {0, rank, size - 1}:
        x = np.full((3, 3), 1.0)
        ah.reduce(x, dst=root)
        assert x.shape == (3, 3)
        assert (x == (size if root == rank else 1)).all()


def test_p095_broadcast(place: tuple[int, int]):
    for root in {0, place[0], place[1] - 1}:
        x = np.full((3, 3), 5.0)
        ah.broadcast(x, src=root)
        np.testing.assert_array_equal(x, np.full((3, 3), 5.0))


def test_p095_all_gather(place: tuple[int, int]):
    mine = np.full((3, 3), float(place[0]))
    outputs = [np.empty((3, 3)) for _ in range(place[1])]
    ah.all_gather(outputs, mine)
    assert all((output == mine).all() for output in outputs)

    whole = np.empty((place[1], 3, 3))
    ah.all_gather_into_tensor(whole, mine)
    assert (whole == mine).all()


def test_p095_gather(place: tuple[int, int]):
    rank, size = place
    mine = np.full((3, 3), float(rank))
    found = [np.empty((3, 3)) for _ in range(size)]
    ah.gather(mine, found, dst=rank)
    assert all((one == mine).all() for one in found)
    ah.gather(mine, None if size > 1 else found, dst=(rank + 1) % size)


def test_p095_scatter(place: tuple[int, int]):
    rank, size = place
    x = np.ones((3, 3))
    ah.scatter(x, [np.full((3, 3), float(other)) for other in range(size)], src=rank)
    np.testing.assert_array_equal(x, np.full((3, 3), float(rank)))
    if size > 1:
        ah.scatter(x, None, src=(rank + 1) % size)
        np.testing.assert_array_equal(x, np.full((3, 3), float(rank)))


def test_p095_reduce_scatter(place: tuple[int, int]):
    rank, size = place
    inputs = [np.full((3, 3), float(other)) for other in range(size)]
    output = np.empty((3, 3))
    ah.reduce_scatter(output, inputs)
    np.testing.assert_array_equal(output, np.full((3, 3), float(rank * size)))

    ah.reduce_scatter_tensor(output, np.stack(inputs), ReduceOp.MAX)
    np.testing.assert_array_equal(output, inputs[rank])


def test_p095_all_to_all(place: tuple[int, int]):
    rank, size = place
    inputs = [np.full((3, 3), float(other)) for other in range(size)]
    outputs = [np.empty((3, 3)) for _ in range(size)]
    ah.all_to_all(outputs, inputs)
    assert all((output == rank).all() for output in outputs)


def test_p095_all_to_all_single(place: tuple[int, int]):
    rank, size = place
    x = np.repeat(np.arange(size), 2).reshape(size, 2)
    output = np.empty_like(x)
    ah.all_to_all_single(output, x)
    np.testing.assert_array_equal(output, np.full((size, 2), rank))

    splits = [1] * size
    ah.all_to_all_single(output, x, splits, splits)
    np.testing.assert_array_equal(output, np.full((size, 2), rank))


def test_p095_uneven_all_to_all_single_repeats_and_cuts_what_this_rank_gives_itself(fake: None):
    x = np.arange(10)
    output = np.full(9, -1)
    ah.all_to_all_single(output, x, [3, 2, 4, 0], [1, 2, 3, 4])
    np.testing.assert_array_equal(output, [1, 2, 1, 1, 2, 1, 2, 1, 2])


def test_p095_send(place: tuple[int, int]):
    rank, size = place
    x = np.ones((3, 3))
    if size > 1:
        ah.send(x, (rank + 1) % size)
        work = ah.isend(x, (rank + 1) % size, tag=3)
        assert work is not None
        assert work.is_success()
    assert x.shape == (3, 3)


def test_p095_recv(place: tuple[int, int]):
    rank, size = place
    x = np.ones((3, 3))
    if size == 1:
        with pytest.raises(ah.AllhandsError, match="no other rank"):
            ah.recv(x)
        return
    other = (rank + 1) % size
    assert ah.recv(x, other) == other
    assert ah.recv(x) == (1 if rank == 0 else 0)
    np.testing.assert_array_equal(x, np.ones((3, 3)))


def test_p095_works_have_ended_when_they_are_given(fake: None):
    x = np.ones(3)
    work = ah.all_reduce(x, async_op=True)
    assert work is not None
    assert work.is_completed()
    assert work.is_success()
    assert work.wait()
    assert work.result() is x
    assert work.get_future().done()
    work.cancel()
    assert "fake" in work.explain()
    assert x[0] == 4


def test_p095_groups_of_some_ranks(place: tuple[int, int]):
    rank, size = place
    group = ah.new_group(
        [rank, *(other for other in range(size) if other != rank)][: size // 2 + 1]
    )
    x = np.ones(2)
    ah.all_reduce(x, group=group)
    assert (x == size // 2 + 1).all()
    assert ah.get_rank(group) == 0
    if size > 1:
        none = ah.new_group([other for other in range(size) if other != rank])
        with pytest.warns(UserWarning, match="does not belong"):
            ah.all_reduce(x, group=none)
        assert (x == size // 2 + 1).all()


def test_p095_arguments_are_checked_as_in_any_group(fake: None):
    x = np.ones(3)
    with pytest.raises(ValueError, match="invalid root rank"):
        ah.broadcast(x, src=4)
    with pytest.raises(ValueError, match="outputs"):
        ah.all_gather([np.ones(3)], x)
    with pytest.raises(TypeError, match="AVG of bool"):
        ah.all_reduce(np.ones(3, bool), ReduceOp.AVG)
    with pytest.raises(ValueError, match="read-only"):
        ah.all_reduce(np.broadcast_to(x, (3, 3)))
    with pytest.raises(ValueError, match="is this rank itself"):
        ah.send(x, 1)
    with pytest.raises(ValueError, match="positive number of seconds"):
        ah.all_reduce(x, timeout=-1)
    np.testing.assert_array_equal(x, np.ones(3))


def test_p095_calls_of_several_steps(place: tuple[int, int]):
    rank, size = place
    x = np.arange(3.0)
    summed = x.copy()
    ah.scan(summed)
    np.testing.assert_array_equal(summed, x * (rank + 1))
    assert [one.tolist() for one in ah.all_gather_v(x)] == [x.tolist()] * size
    if size < 100:  # all ranks tell all others the shape of each block
        assert ah.reduce_scatter_v([x] * size).tolist() == (x * size).tolist()
    assert ah.scatter_v([x] * size, src=rank).tolist() == x.tolist()
    pair = [x.copy(), np.ones(2)]
    ah.all_reduce_coalesced(pair)
    assert [one.tolist() for one in pair] == [(x * size).tolist(), [size] * 2]
    sparse = ah.SparseArray([[0, 2]], np.array([1.0, 2.0]), [4])
    ah.all_reduce(sparse)
    assert sparse.todense().tolist() == [size, 0, 2 * size, 0]
    scaled = x.copy()
    ah.all_reduce(scaled, ReduceOp.premul_sum(2))
    np.testing.assert_array_equal(scaled, x * 2 * size)
    parts = x.copy()
    ah.all_reduce(parts, ReduceOp.user(np.maximum))
    assert (parts.shape, parts.dtype) == (x.shape, x.dtype)


def test_p095_objects(place: tuple[int, int]):
    rank, size = place
    found: list[object] = [None] * size
    ah.all_gather_object(found, {"rank": rank})
    assert found == [{"rank": rank}] * size
    told: list[object] = ["a", 1]
    ah.broadcast_object_list(told, src=rank)
    assert told == ["a", 1]
    if size > 1:
        with pytest.raises(ah.AllhandsError, match="would bring is not known here"):
            ah.broadcast_object_list(told, src=(rank + 1) % size)
        assert told == ["a", 1]


def test_p095_abort_and_deadlines_end_calls_of_a_fake_group_too(fake: None):
    x = np.ones(3)
    with ah.deadline(0), pytest.raises(ah.CollectiveTimeout):
        ah.all_reduce(x)
    ah.abort("enough")
    with pytest.raises(ah.GroupAborted, match="enough"):
        ah.all_reduce(x)
    with pytest.raises(ah.GroupAborted, match="enough"):
        ah.send(x, 0)
    np.testing.assert_array_equal(x, np.ones(3))


def test_p095_calls_are_recorded_and_numbered(fake: None):
    ah.barrier()
    ah.all_reduce(np.ones(3), label="gradients")
    ah.send(np.ones(3), 0)
    found = ah.flight_recorder()
    assert [(one.operation, one.sequence, one.outcome) for one in found] == [
        ("barrier", 1, "ok"),
        ("all_reduce", 2, "ok"),
        ("send", 0, "ok"),
    ]
    assert ah.default_group().sequence == 2


def test_p095_persistent_call(fake: None):
    x = np.ones(3)
    call = ah.all_reduce_init(x)
    assert call is not None
    for _ in range(2):
        call.start()
        call.wait()
    np.testing.assert_array_equal(x, np.full(3, 16.0))


def test_p095_world_after_world(fake: None):
    ah.destroy_process_group()
    for rank, size in ((0, 2), (5, 6)):
        ah.init_process_group(backend="fake", rank=rank, world_size=size)
        group = ah.default_group()
        x = np.ones(1)
        ah.all_reduce(x)
        assert x[0] == size
        ah.destroy_process_group()
        with pytest.raises(RuntimeError, match="left"):
            group.all_reduce(x)


def test_p095_what_a_fake_world_cannot_have_is_refused(monkeypatch: pytest.MonkeyPatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="wants rank and world_size"):
        ah.init_process_group(backend="fake", rank=0)
    with pytest.raises(ValueError, match="is not in a world of 2"):
        ah.init_process_group(backend="fake", rank=2, world_size=2)
    with pytest.raises(ValueError, match="loses no rank"):
        ah.init_process_group(backend="fake", rank=0, world_size=2, on_failure="shrink")
    assert not ah.is_initialized()
    ah.init_process_group(backend="fake", rank=0, world_size=2)
    try:
        with pytest.raises(RuntimeError, match=r"no coordinator.*HashStore"):
            ah.store()
        with pytest.raises(ah.AllhandsError, match="fake"):
            ah.default_group().shrink()
    finally:
        ah.destroy_process_group()
