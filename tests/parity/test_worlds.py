"""Worlds from joining to leaving: rows 4, 5, 103, 106 and 107 of the parity table."""

import contextlib
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

import allhands as ah
from allhands.testing import on_threads


@on_threads(2, timeout=50)
def test_p004_the_default_timeout_of_a_group_is_read_and_set(rank):
    world, pair = ah.default_group(), ah.new_group([0, 1], timeout=timedelta(seconds=40).seconds)
    assert (world.timeout, pair.timeout) == (50, 40)
    world.timeout = 23
    assert (world.timeout, world.here.timeout, pair.timeout) == (23, 23, 40)
    ah.set_timeout(timedelta(minutes=1), pair)
    assert (world.timeout, pair.timeout) == (23, 60)
    ah.set_timeout(12.5)
    assert world.timeout == 12.5
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            world.timeout = wrong
        with pytest.raises(ValueError, match="timeout"):
            ah.set_timeout(wrong, pair)
    assert (world.timeout, pair.timeout) == (12.5, 60)


@on_threads(2, timeout=50)
def test_p004_a_timeout_that_was_set_counts_for_calls_and_messages(rank):
    group = ah.default_group()
    if rank == 0:
        group.timeout = 0.2
        begun = time.monotonic()
        for call in (
            lambda: ah.all_reduce(np.ones(1)),
            lambda: ah.barrier(async_op=True).wait(),
            lambda: ah.recv(np.ones(1), 1, tag=5),
        ):
            with pytest.raises(ah.CollectiveTimeout):
                call()
        assert time.monotonic() - begun < 20
        group.timeout = 50
        ah.send(np.ones(1), 1)
    else:
        ah.recv(np.ones(1), 0)
        for late in (lambda: group.all_reduce(np.ones(1)), group.barrier):
            with contextlib.suppress(ah.CollectiveTimeout):  # unless rank 0's part is here
                late().wait()
    x = np.ones(1)
    group.all_reduce(x).wait()
    assert x[0] == 2


@on_threads(2, timeout=50, retryable=True)
def test_p004_a_timeout_that_was_set_counts_where_calls_are_made_again(rank):
    group = ah.default_group()
    group.timeout = 0.2
    if rank == 0:
        with pytest.raises(ah.CollectiveTimeout):
            ah.recv(np.ones(1), 1, tag=5)
        with pytest.raises(ah.AllhandsError):
            ah.all_reduce(np.ones(1))
    else:
        ah.recv(np.ones(1), 0, timeout=50)
        with contextlib.suppress(ah.AllhandsError):
            ah.all_reduce(np.ones(1))
    group.timeout = 40
    assert group.timeout == 40
    if rank == 0:
        ah.send(np.ones(1), 1)


@on_threads(2)
def test_p005_futures_of_two_groups_overlap(rank):
    """A device is a group with a separate order: no call waits for a call of a second group."""
    slow, quick = ah.new_group([0, 1]), ah.new_group([0, 1])
    held, arrays = np.full(10, rank), [np.full(10, rank + at) for at in range(10)]
    if rank == 0:
        waiting = slow.all_reduce(held).get_future()
    futures = [quick.all_reduce(one).get_future() for one in arrays]
    ah.futures.wait_all(futures)
    for at, one in enumerate(arrays):
        np.testing.assert_array_equal(one, 2 * at + 1)
    if rank == 0:
        assert not waiting.done()
        ah.send(np.zeros(1), 1)
    else:
        ah.recv(np.zeros(1), 0)
        waiting = slow.all_reduce(held).get_future()
    waiting.wait(20)
    np.testing.assert_array_equal(held, 1)


@on_threads(2)
def test_p103_destroying_a_group_ends_it_and_no_other(rank):
    pair = ah.new_group([0, 1])
    x = np.ones(2)
    ah.all_reduce(x, group=pair)
    ah.destroy_process_group(pair)
    for call in (
        lambda: ah.all_reduce(x, group=pair),
        lambda: pair.all_reduce(x).wait(),
        lambda: ah.send(x, 1 - rank, pair),
    ):
        with pytest.raises(ah.AllhandsError, match="destroyed"):
            call()
    np.testing.assert_array_equal(x, 2)
    ah.barrier()


@on_threads(2)
def test_p103_after_the_world_is_destroyed_calls_say_so(rank):
    group, x = ah.default_group(), np.ones(2)
    ah.destroy_process_group()
    assert not ah.is_initialized()
    for call in (lambda: ah.all_reduce(x), lambda: ah.send(x, 1 - rank), ah.get_rank):
        with pytest.raises(RuntimeError, match="init_process_group"):
            call()
    with pytest.raises(RuntimeError, match="left"):
        group.all_reduce(x).wait()
    np.testing.assert_array_equal(x, 1)


@on_threads(2)
def test_p103_a_message_sent_before_leaving_is_received(rank):
    if rank == 0:
        for number in range(20):
            ah.isend(np.full(1000, number), 1)
        ah.destroy_process_group()
        return
    y = np.zeros(1000, np.int64)
    for number in range(20):
        assert ah.recv(y, 0) == 0
        np.testing.assert_array_equal(y, number)


@on_threads(3)
def test_p103_aborting_ends_every_call_of_every_rank(rank):
    if rank == 0:
        work = ah.irecv(np.zeros(3), 1)
        ah.abort("we are done")
        with pytest.raises(ah.GroupAborted, match="we are done"):
            work.wait()
    else:
        with pytest.raises(ah.GroupAborted, match="we are done"):
            ah.all_reduce(np.ones(3))
    with pytest.raises(ah.GroupAborted, match="we are done"):
        ah.barrier()


@pytest.mark.parametrize("backend", ["auto", "shm", "socket", "grpc"])
def test_p106_every_backend_makes_a_world(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    ah.init_process_group(f"file://{tmp_path / 'm'}", rank=0, world_size=1, backend=backend)
    try:
        group = ah.default_group()
        assert (group.rank, group.size, group.name) == (0, 1, "world")
        x = np.arange(3.0)
        ah.all_reduce(x)
        np.testing.assert_array_equal(x, [0, 1, 2])
    finally:
        ah.destroy_process_group()


def test_p106_a_fake_backend_makes_a_world_of_any_size() -> None:
    ah.init_process_group(backend="fake", rank=3, world_size=8, store=ah.FakeStore())
    try:
        group = ah.default_group()
        assert (group.rank, group.size, group.name) == (3, 8, "world")
        group.timeout = 23
        assert group.timeout == 23
        for work in ah.batch_isend_irecv([ah.P2POp(ah.isend, np.ones(2), 0)]):
            assert work.wait()
    finally:
        ah.destroy_process_group()


def test_p106_a_backend_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="backend must be one of"):
        ah.init_process_group(rank=0, world_size=1, backend="pigeons")


@on_threads(3)
def test_p106_threads_make_a_world_and_groups_know_their_ranks(rank):
    group = ah.default_group()
    assert (group.rank, group.size, group.name) == (rank, 3, "world")
    assert (ah.get_rank(), ah.get_world_size()) == (rank, 3)
    pair = ah.new_group([2, 0])
    if rank == 1:
        assert (ah.get_rank(pair), ah.get_world_size(pair)) == (-1, -1)
    else:
        assert (pair.rank, pair.size, pair.ranks) == ([2, 0].index(rank), 2, (2, 0))
        assert pair.name != group.name


def labelled(rank: int) -> list[str]:
    """Make every kind of call with a label; return the labels, in the order of the calls."""
    x, y, many = np.ones(4), np.ones(2), [np.ones(2), np.ones(2)]
    other, root = 1 - rank, rank == 0
    calls = {
        "broadcast": lambda label: ah.broadcast(x, 0, label=label),
        "all_reduce": lambda label: ah.all_reduce(x, label=label),
        "all_reduce async": lambda label: ah.all_reduce(x, async_op=True, label=label).wait(),
        "reduce": lambda label: ah.reduce(x, 0, label=label),
        "gather": lambda label: ah.gather(y, many if root else None, label=label),
        "scatter": lambda label: ah.scatter(y, many if root else None, label=label),
        "all_gather": lambda label: ah.all_gather(many, y, label=label),
        "all_gather_into_tensor": lambda label: ah.all_gather_into_tensor(x, y, label=label),
        "reduce_scatter": lambda label: ah.reduce_scatter(y, many, label=label),
        "reduce_scatter_tensor": lambda label: ah.reduce_scatter_tensor(y, x, label=label),
        "all_to_all": lambda label: ah.all_to_all(many, [y, y.copy()], label=label),
        "all_to_all_single": lambda label: ah.all_to_all_single(x, np.ones(4), label=label),
        "barrier": lambda label: ah.barrier(label=label),
        "monitored_barrier": lambda label: ah.monitored_barrier(label=label),
        "message": lambda label: (ah.send if root else ah.recv)(x, other, label=label),
        "batch": lambda label: ah.batch_isend_irecv(
            [ah.P2POp(ah.isend if root else ah.irecv, x, other)], label=label
        )[0].wait(),
    }
    for what, call in calls.items():
        call(f"my {what}")
    return [f"my {what}" for what in calls]


@on_threads(2)
def test_p107_the_label_of_every_call_is_recorded(rank):
    labels = labelled(rank)
    records = {one.label: one for one in ah.flight_recorder() if one.label}
    assert [*records] == labels
    for what, operation in (("all_reduce async", "all_reduce"), ("barrier", "barrier")):
        assert records[f"my {what}"].operation == operation


@on_threads(2, init=False)
def test_p106_threads_may_be_given_a_store_as_processes_are(rank):
    ah.init_process_group(backend="threads", store=ah.HashStore(), rank=rank, world_size=2)
    x = np.ones(2)
    ah.all_reduce(x)
    np.testing.assert_array_equal(x, 2)
