"""Works and futures under the waits of PyTorch's C++ and of threads: ends and errors."""

import os
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from allhands.errors import CollectiveMismatch, CollectiveTimeout
from support.torch.ranks import on_ranks, run_ranks
from support.torch.training import SMALL, loss_of, parallel, rows

SECONDS = 20.0


def wait(future: Any) -> Any:
    """Wait for a future of PyTorch's, which knows no timeout, for so long at most."""
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    assert done.wait(SECONDS)
    return future.wait()


@on_ranks(2)
def test_p114_waiting_for_too_short_a_time_leaves_a_call_as_it_is(rank: int) -> None:
    x = torch.zeros(3)
    if rank == 1:
        dist.barrier()
        dist.send(torch.ones(3), 0)
        return
    work = dist.irecv(x, 1)
    with pytest.raises(CollectiveTimeout):
        work.wait(timedelta(milliseconds=50))
    assert not work.is_completed()
    dist.barrier()
    assert work.wait(timedelta(0)), "that is how C++ says for as long as it takes"
    assert work.is_success()
    assert x.eq(1).all()


@on_ranks(2)
def test_p114_a_failure_is_seen_by_all_who_wait(rank: int) -> None:
    """By class in Python, by text behind C++."""
    work = dist.all_reduce(torch.ones(4 + rank), async_op=True)
    future = work.get_future()
    seen: list[str] = []

    def ask(done: Any) -> None:
        try:
            done.value()
        except Exception as error:
            seen.append(str(error))
            raise

    followed = future.then(ask)
    text = "ranks made different calls"
    with pytest.raises(CollectiveMismatch, match=text):
        work.wait()
    assert isinstance(work.exception(), CollectiveMismatch)
    assert work.is_completed()
    assert not work.is_success()
    for one in (future, followed, torch.futures.collect_all([future])):
        with pytest.raises(RuntimeError, match=text):
            one.wait()
    assert text in seen[0]
    with pytest.raises(RuntimeError, match=text):
        torch.futures.wait_all([future])


@on_ranks(2)
def test_p114_functions_called_at_the_end_may_wait_for_one_another(rank: int) -> None:
    count = 8
    free: list[Any] = [torch.futures.Future() for _ in range(count + 1)]
    free[count].set_result(0)

    def waiting(at: int) -> Any:
        def pass_on(done: Any) -> float:
            value: float = done.value()[0].item()
            free[at].set_result(free[at + 1].wait() + value)
            return value

        return pass_on

    works = [dist.irecv(torch.zeros(1), 1 - rank, tag=at) for at in range(count)]
    futures = [one.get_future().then(waiting(at)) for at, one in enumerate(works)]
    dist.barrier()  # of a work that has ended, the function would run here and now
    for at in range(count):
        dist.send(torch.ones(1), 1 - rank, tag=at)
    assert wait(torch.futures.collect_all(futures)) is not None
    assert free[0].wait() == count


@on_ranks(2)
def test_p114_threads_hooks_and_the_main_thread_use_a_world_at_once(rank: int) -> None:
    """Each thread has its own group, as a group has one order; hooks share the main thread's."""
    groups = [dist.new_group([0, 1]) for _ in range(3)]
    failed: list[BaseException] = []

    def call(group: Any) -> None:
        try:
            for at in range(50):
                x = torch.full((257,), float(at + rank))
                dist.all_reduce(x, group=group)
                assert x.eq(2 * at + 1).all()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=call, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()

    def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()

        def call_on(done: Any) -> torch.Tensor:
            mine = done.value()[0]
            dist.all_reduce(mine.clone())
            return mine / 2

        return future.then(call_on)

    model = parallel(bucket_cap_mb=SMALL)
    model.register_comm_hook(None, hook)
    outer = [dist.all_reduce(torch.ones(1 << 16), async_op=True) for _ in range(3)]
    for x, wanted in rows(rank):
        model.zero_grad()
        loss_of(model, x, wanted).backward()
        outer.append(dist.all_reduce(torch.ones(1 << 16), async_op=True))
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert not failed
    assert all(one.wait() for one in outer)


def test_p114_a_backward_pass_says_which_rank_was_lost():
    def body(rank: int) -> str:
        model = parallel(bucket_cap_mb=SMALL)
        for step, (x, wanted) in enumerate(rows(rank)):
            model.zero_grad()
            loss = loss_of(model, x, wanted)
            if rank == 1 and step == 2:
                os._exit(9)
            try:
                loss.backward()
            except RuntimeError as error:
                return str(error)
        return "no error"

    said = run_ranks(3, body, dies=(1,))
    for rank in (0, 2):
        assert "rank 1" in said[rank]
        assert "all_reduce" in said[rank]


@on_ranks(2)
def test_p114_calls_that_nobody_waits_for_end_before_the_group(rank: int) -> None:
    tensors = [torch.ones(1 << 12) for _ in range(20)]
    ended: list[float] = []
    for one in tensors:
        future = dist.all_reduce(one, async_op=True).get_future()
        future.add_done_callback(lambda done: ended.append(done.value()[0][0].item()))
    dist.destroy_process_group()
    assert ended == [2.0] * 20
