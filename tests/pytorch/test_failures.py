"""Errors of failed calls: classes and verdicts, in Python and through PyTorch's C++."""

import os
import pickle
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

import allhands as ah
from support.torch.ranks import on_ranks, run_ranks

Call = Callable[[], Any]


def plain() -> dict[str, Call]:
    """Return calls of the whole world by name, with only Python in the way."""
    x, both = torch.ones(4), torch.ones(8)
    each = [torch.ones(4), torch.ones(4)]
    rank = dist.get_rank()
    return {
        "all_reduce": lambda: dist.all_reduce(x),
        "broadcast": lambda: dist.broadcast(x, 1),
        "reduce": lambda: dist.reduce(x, 1 - rank),
        "all_gather": lambda: dist.all_gather(each, x),
        "all_gather_single": lambda: dist.all_gather_single(both, x),
        "reduce_scatter": lambda: dist.reduce_scatter(x, each),
        "reduce_scatter_single": lambda: dist.reduce_scatter_single(x, both),
        "all_to_all": lambda: dist.all_to_all(each, [x, x]),
        "all_to_all_single": lambda: dist.all_to_all_single(x, x.clone()),
        "gather": lambda: dist.gather(x, each if rank == 0 else None),
        "scatter": lambda: dist.scatter(x, None, src=1),
        "barrier": lambda: dist.barrier(),
        "monitored_barrier": lambda: dist.monitored_barrier(),
        "recv": lambda: dist.recv(x, 1),
        "recv from any": lambda: dist.recv(x),
        "objects": lambda: dist.all_gather_object([None, None], rank),
        "waited for": lambda: dist.all_reduce(x, async_op=True).wait(),
        "functional": lambda: functional.wait_tensor(
            functional.all_reduce(x, "sum", dist.group.WORLD)
        ),
        "functional, waited for by use": lambda: (
            functional.all_gather_single(x, 0, dist.group.WORLD) + 1
        ),
    }


def through_futures() -> dict[str, Call]:
    """Return calls whose end C++ reports, with a single class for all errors."""
    x = torch.ones(4)
    return {
        "future": lambda: dist.all_reduce(x, async_op=True).get_future().wait(),
        "then": lambda: (
            dist.all_reduce(x, async_op=True).get_future().then(lambda one: one.value()).wait()
        ),
    }


def test_every_call_says_of_a_rank_that_died_who_it_was() -> None:
    def body(rank: int) -> None:
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        for name, call in plain().items():
            with pytest.raises(ah.PeerFailed, match=r"rank 1 \(host .*, pid \d+\) is dead") as it:
                call()
            assert it.value.failed_ranks == (1,), name
            assert it.value.verdict is not None, name
            again = pickle.loads(pickle.dumps(it.value))  # noqa: S301
            assert (type(again), str(again)) == (ah.PeerFailed, str(it.value))
        for call in through_futures().values():
            with pytest.raises(RuntimeError, match=r"PeerFailed: .* rank 1 .* is dead"):
                call()
        work = dist.all_reduce(torch.ones(2), async_op=True)
        with pytest.raises(ah.PeerFailed):
            work.wait()
        assert work.is_completed()
        assert not work.is_success()
        assert isinstance(work.exception(), ah.PeerFailed)

    run_ranks(2, body, dies=(1,))


def test_a_rank_that_does_not_come_is_told_of_with_where_it_is() -> None:
    def body(rank: int) -> None:
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:
            store.wait(["told"], timedelta(seconds=20))
            return
        world: Any = dist.group.WORLD
        world.set_timeout(timedelta(seconds=0.5))
        for call in (dist.barrier, lambda: dist.all_reduce(torch.ones(1))):
            with pytest.raises(ah.CollectiveTimeout) as it:
                call()
            said = str(it.value)
            assert it.value.missing_ranks == (1,)
            assert "rank 1 (host " in said
            assert "store.wait" in said  # its stack: where it is instead
            assert " Timed out " in said
        store.set("told", "")

    run_ranks(2, body)


@on_ranks(2)
def test_calls_that_do_not_belong_together_are_told_to_both(rank: int) -> None:
    for one, other in (
        (lambda: dist.all_reduce(torch.ones(2)), lambda: dist.all_reduce(torch.ones(3))),
        (lambda: dist.all_reduce(torch.ones(2)), dist.barrier),
        (
            lambda: dist.all_reduce(torch.ones(2)),
            lambda: dist.all_reduce(torch.ones(2, dtype=torch.float64)),
        ),
        (lambda: dist.broadcast(torch.ones(2), 0), lambda: dist.broadcast(torch.ones(2), 1)),
    ):
        with pytest.raises(ah.CollectiveMismatch) as it:
            (other if rank else one)()
        assert set(it.value.table) == {0, 1}
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == 2


def test_ddp_says_who_died_whatever_it_was_doing() -> None:
    def body(rank: int) -> None:
        model = DistributedDataParallel(torch.nn.BatchNorm1d(3))
        model(torch.rand(4, 3)).sum().backward()
        loss = model(torch.rand(4, 3)).sum()
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"PeerFailed: .* rank 2 .* is dead"):
            loss.backward()
        with pytest.raises(ah.PeerFailed):
            model(torch.rand(4, 3))  # its buffers are broadcast
        with pytest.raises(ah.PeerFailed):
            DistributedDataParallel(torch.nn.Linear(1, 1))

    run_ranks(3, body, dies=(2,))


@on_ranks(2)
def test_a_wait_that_gives_up_says_so_and_the_call_goes_on(rank: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    x = torch.ones(1)
    if rank == 0:
        work = dist.all_reduce(x, async_op=True)
        with pytest.raises(ah.CollectiveTimeout):
            work.wait(timedelta(seconds=0.1))
        assert not work.is_completed()
        store.set("waited", "")
        work.wait()
    else:
        store.wait(["waited"])
        dist.all_reduce(x)
    assert x.item() == 2


@on_ranks(2)
def test_calls_are_told_of_by_the_line_of_the_program_that_made_them(rank: int) -> None:
    dist.all_gather_object([None, None], rank)
    x = torch.ones(2)
    (dist.send if rank else dist.recv)(x, 1 - rank)
    dist.monitored_barrier()
    found = [
        (one.operation, one.file, one.function) for one in dist.group.WORLD.world.get_records()[-4:]
    ]
    here = (__file__, "test_calls_are_told_of_by_the_line_of_the_program_that_made_them")
    assert [one[1:] for one in found] == [here] * 4, found
