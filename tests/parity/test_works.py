"""Works and futures: rows 46 and 114 of the parity table, and a thousand at once."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import numpy as np
import pytest

import allhands as ah
from allhands.testing import on_threads


@on_threads(3)
def test_p046_a_barrier_implies_that_earlier_calls_have_ended(rank):
    group = ah.default_group()
    arrays = [np.full(1000, rank + at, np.int64) for at in range(20)]
    works = [ah.all_reduce(one, async_op=True) for one in arrays]
    ah.barrier()
    assert all(work.is_completed() for work in works)
    for at, one in enumerate(arrays):
        np.testing.assert_array_equal(one, 3 + 3 * at)
    # The same where the barrier itself is asynchronous.
    works = [ah.broadcast(one, at % 3, async_op=True) for at, one in enumerate(arrays)]
    ah.barrier(async_op=True).wait()
    assert all(work.is_success() for work in works)
    assert group.sequence == 42


@on_threads(2)
def test_p114_a_work_tells_how_it_stands(rank):
    x = np.ones(4)
    if rank == 0:
        work = ah.all_reduce(x, async_op=True)
        assert not work.is_completed()
        assert not work.is_success()
        assert work.exception() is None
        for limit in (0.01, timedelta(seconds=0.01)):
            with pytest.raises(ah.CollectiveTimeout, match="goes on"):
                work.wait(limit)
        ah.send(np.zeros(1), 1)
    else:
        ah.recv(np.zeros(1), 0)
        work = ah.all_reduce(x, async_op=True)
    assert work.wait() is True
    work.synchronize()
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert work.result() is x
    assert work.get_future().value() is x
    with pytest.raises(ValueError, match="received nothing"):
        work.source_rank()


@on_threads(2)
def test_p114_a_work_that_failed_says_why_each_time(rank):
    x = np.ones(4 + rank)  # unlike on the other rank
    work = ah.all_reduce(x, async_op=True)
    for _ in range(2):
        with pytest.raises(ah.CollectiveMismatch):
            work.wait()
    with pytest.raises(ah.CollectiveMismatch):
        work.result()
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), ah.CollectiveMismatch)
    assert isinstance(work.get_future().exception(), ah.CollectiveMismatch)
    seen = work.get_future().then(lambda done: type(done.exception()))
    assert seen.wait(10) is ah.CollectiveMismatch
    np.testing.assert_array_equal(x, 1)


@on_threads(2)
def test_p114_a_work_can_be_cancelled(rank):
    large = np.ones(1 << 18)  # what is small may be with the others already
    if rank == 0:
        work = ah.all_reduce(large, async_op=True)
        work.cancel()
        with pytest.raises(ah.AllhandsError, match="cancelled"):
            work.wait()
        ah.send(np.zeros(1), 1)
    else:
        ah.recv(np.zeros(1), 0)  # else it may have ended before
        with pytest.raises(ah.GroupAborted):
            ah.all_reduce(large)
    x = np.ones(2)
    ah.all_reduce(x)
    np.testing.assert_array_equal(x, 2)


@on_threads(3)
def test_p114_futures_are_chained_and_waited_for_together(rank):
    arrays = [np.full(10, rank + at) for at in range(8)]
    futures = [
        ah.all_reduce(one, async_op=True)
        .get_future()
        .then(lambda done: done.value() / 3)
        .then(lambda done: int(done.value()[0]))
        for one in arrays
    ]
    collected = ah.futures.collect_all(futures)
    assert ah.futures.wait_all(futures) == [1 + at for at in range(8)]
    assert [one.value() for one in collected.wait(10)] == [1 + at for at in range(8)]


@on_threads(2)
def test_p114_a_function_called_then_may_make_a_call_and_wait_for_it(rank):
    """On the completing thread, the function would wait for itself."""
    group = ah.default_group()

    def go_on(done: ah.futures.Future[object]) -> np.ndarray:
        x = done.value()
        group.all_reduce(x).wait(20)
        return x

    x = np.ones(2)
    last = group.all_reduce(x).get_future()
    for _ in range(3):
        last = last.then(go_on)
    np.testing.assert_array_equal(last.wait(20), 16)


@on_threads(2)
def test_p114_calls_of_a_thousand_futures_end_while_functions_of_others_wait(rank):
    group, release = ah.default_group(), threading.Event()
    arrays = [np.full(4, at) for at in range(1000)]
    received = ah.irecv(np.empty(1), 1 - rank)
    held = received.get_future().then(lambda _: release.wait(20))
    ah.barrier()  # a function of a future that is done would be called here
    ah.send(np.zeros(1), 1 - rank)
    received.wait()
    seen = []
    futures = [
        group.all_reduce(one).get_future().then(lambda done: seen.append(int(done.value()[0])))
        for one in arrays
    ]
    ah.futures.wait_all(futures)
    assert sorted(seen) == [2 * at for at in range(1000)]
    release.set()
    assert held.wait(20)


@on_threads(2)
def test_a_thousand_calls_of_eight_threads_on_their_own_groups_are_exact(rank):
    groups = [ah.new_group([0, 1]) for _ in range(8)]

    def calls(number: int) -> None:
        group = groups[number]
        arrays = [np.full(5, 1000 * number + at + rank) for at in range(125)]
        works = [group.all_reduce(one) for one in arrays]
        for at, (one, work) in enumerate(zip(arrays, works, strict=True)):
            work.wait()
            np.testing.assert_array_equal(one, 2 * (1000 * number + at) + 1)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(calls, range(8)))


@on_threads(2)
def test_a_thousand_calls_of_eight_threads_and_a_loop_on_one_group_are_exact(rank):
    """Calls pair in the order of each rank; equal calls may be made by any thread."""
    group, count = ah.default_group(), 125
    arrays = [np.full(3, rank + 1) for _ in range(8 * count)]
    lasting = [np.full(3, rank + 1) for _ in range(count)]

    def calls(number: int) -> None:
        works = [group.all_reduce(one) for one in arrays[number::8]]
        for work in works:
            work.wait()

    async def loop() -> None:
        waiting = [asyncio.wrap_future(group.all_reduce(one).get_future()) for one in lasting]
        await asyncio.gather(*waiting)

    with ThreadPoolExecutor(9) as pool:
        ended = [pool.submit(calls, number) for number in range(8)]
        ended.append(pool.submit(lambda: asyncio.run(loop())))
        for one in ended:
            one.result()
    for one in arrays + lasting:
        np.testing.assert_array_equal(one, 3)
    assert group.sequence == 9 * count
