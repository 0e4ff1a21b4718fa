"""Threads as ranks: errors of a rank surface, whatever call the rest is in."""

import threading
import time
import unittest

import numpy as np
import pytest

import allhands as ah
from allhands.testing import (
    RankError,
    RanksStuck,
    assert_equal_on_rank,
    assert_not_equal_on_rank,
    on_threads,
    run_threads,
    threads,
)
from support.ranks.addresses import free_port

WAYS = ("threads",)


def _gathered() -> list[np.ndarray]:
    mine = np.full((3, 3), ah.get_rank())
    outputs = [np.empty_like(mine) for _ in range(ah.get_world_size())]
    ah.all_gather(outputs, mine)
    return outputs


def _failing(*ranks: int) -> None:
    _gathered()
    if ah.get_rank() in ranks:
        raise AssertionError("a real failure")
    _gathered()


@pytest.mark.parametrize("failing", [(0,), (1,), (1, 2, 3)])
def test_p076_exception_of_a_rank_surfaces_and_releases_the_others(failing: tuple[int, ...]):
    begun = time.monotonic()
    with pytest.raises(
        RuntimeError, match=r"rank \d of 4 raised AssertionError: a real fail"
    ) as it:
        run_threads(4)(lambda: _failing(*failing))

    found = it.value
    assert isinstance(found, RankError)
    assert found.rank in failing
    assert isinstance(found.__cause__, AssertionError)
    assert sorted(found.errors) == [0, 1, 2, 3]
    released = {rank: error for rank, error in found.errors.items() if rank not in failing}
    assert all(isinstance(error, ah.GroupAborted) for error in released.values())
    assert time.monotonic() - begun < 10  # far from every deadline


def test_p076_exception_before_joining_releases_who_joins():
    def body(rank: int) -> None:
        if rank == 2:
            raise LookupError("no data")
        ah.init_process_group(backend="threads")

    with pytest.raises(RankError, match="rank 2 of 3 raised LookupError: no data"):
        run_threads(3, init=False)(body)


def test_p076_hanging_rank_is_named_with_its_stack(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "_END_SECONDS", 0.1)
    release, held_up = threading.Event(), []

    def body(rank: int) -> None:
        if rank == 1:
            held_up.append(threading.current_thread())
            release.wait(30)
        ah.barrier()

    with pytest.raises(RanksStuck, match=r"did not end within 0.5 s") as it:
        run_threads(3, deadline=0.5)(body)
    release.set()
    held_up[0].join(30)  # it is a rank until then, and the process in no other world
    assert not held_up[0].is_alive()
    assert "release.wait(30)" in str(it.value)
    assert isinstance(it.value.errors[0], ah.GroupAborted)


def test_p077_skip_propagates():
    @unittest.skip("nothing to test here")
    def skipped() -> None:
        raise AssertionError("not reached")

    with pytest.raises(unittest.SkipTest, match="nothing to test here"):
        run_threads(4)(skipped)


def test_p077_skip_of_one_rank_releases_the_others():
    def body(rank: int) -> None:
        if rank == 1:
            pytest.skip("not on rank 1")
        ah.barrier()

    with pytest.raises(pytest.skip.Exception, match="not on rank 1"):
        run_threads(3)(body)


def test_p077_failure_goes_before_skip():
    def body(rank: int) -> None:
        if rank == 0:
            raise unittest.SkipTest("nothing to do")
        raise AssertionError("a real failure")

    with pytest.raises(RankError, match="a real failure"):
        run_threads(2)(body)


@on_threads(4)
def test_p054_group_used_from_a_thread_that_a_rank_has_started(rank: int):
    groups = [ah.default_group(), ah.new_group([3, 2, 1, 0])]
    found: list[float] = []

    def elsewhere() -> None:
        for group in groups:
            x = np.full(4, float(rank))
            ah.all_reduce(x, group=group)
            found.append(x[0])

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [6.0, 6.0]


@on_threads(3)
def test_worlds_of_threads_are_apart(rank: int):
    assert ah.is_initialized()
    assert (ah.get_rank(), ah.get_world_size()) == (rank, 3)
    ah.destroy_process_group()
    assert not ah.is_initialized()


@on_threads(3)
def test_p116_world_again_after_destroy(rank: int):
    for _ in range(3):
        x = np.array([rank])
        ah.all_reduce(x)
        assert x[0] == 3
        ah.destroy_process_group()
        with pytest.raises(RuntimeError, match="in no world"):
            ah.all_reduce(x)
        ah.init_process_group(backend="threads")


@on_threads(3)
def test_coordinator_of_threads_has_keys_and_a_status(rank: int):
    store = ah.store()
    store.set(str(rank), b"here")
    store.wait([str(other) for other in range(3)])
    assert ah.status().world_size == 3
    ah.barrier()


def test_monitored_barrier_of_threads_says_where_the_missing_rank_is():
    release = threading.Event()

    def body(rank: int) -> str:
        if rank == 2:
            release.wait(30)
            return ""
        with pytest.raises(ah.CollectiveTimeout) as missed:
            ah.monitored_barrier(timeout=0.4)
        release.set()
        assert missed.value.missing_ranks == (2,)
        return str(missed.value)

    first, second, _ = run_threads(3)(body)
    assert first == second
    assert "release.wait(30)" in first


@on_threads(4)
def test_p078_assert_equal_on_rank(rank: int):
    mine = np.random.default_rng(rank).random((3, 3))
    of_rank_0 = mine.copy()
    ah.broadcast(of_rank_0, src=0)

    assert_equal_on_rank(of_rank_0, mine, rank=0)
    assert_not_equal_on_rank(of_rank_0, mine, rank=1)


@on_threads(3)
def test_p078_every_rank_learns_that_the_assertion_failed_on_one(rank: int):
    with pytest.raises(AssertionError, match="on rank 2:"):
        assert_equal_on_rank(rank, 1, rank=2)
    with pytest.raises(AssertionError, match="on rank 1: both are"):
        assert_not_equal_on_rank([np.zeros(rank)], [np.zeros(1)], rank=1)
    with pytest.raises(AssertionError, match="int64 array of shape"):
        assert_equal_on_rank([np.zeros(2, np.int64)], [np.zeros(2)], rank=1)
    assert_equal_on_rank({"a": np.full(2, np.nan)}, {"a": np.full(2, np.nan)}, rank=1)
    group = ah.new_group([1, 2])
    if rank:
        assert_equal_on_rank(rank, 2, rank=2, group=group)


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_p116_threads_may_join_worlds_as_processes_do(backend: str):
    url = f"tcp://127.0.0.1:{free_port()}"

    def body(rank: int) -> list[float]:
        found = []
        for _ in range(2):
            ah.init_process_group(url, rank=rank, world_size=2, timeout=20, backend=backend)
            x = np.full(3, rank + 1.0)
            ah.all_reduce(x)
            found.append(x[0])
            ah.destroy_process_group()
        return found

    assert run_threads(2, init=False)(body) == [[3.0, 3.0]] * 2


def test_threads_are_refused_in_a_process_that_is_in_a_world():
    ah.init_process_group()
    try:
        with pytest.raises(RuntimeError, match="in a world"):
            run_threads(2)(lambda: None)
    finally:
        ah.destroy_process_group()


def test_threads_backend_is_refused_outside():
    with pytest.raises(RuntimeError, match="run_threads"):
        ah.init_process_group(backend="threads")
