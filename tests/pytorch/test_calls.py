"""Arguments beside tensors, and returned handles: ReduceOp and Work."""

import copy
import pickle
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import allhands as ah
from allhands.torch.options import to_reduce_op
from support.torch.ranks import on_ranks
from support.torch.reduction_cases import equal

NAMES = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def copies(op: Any) -> list[Any]:
    again = pickle.loads(pickle.dumps(op))  # noqa: S301 our own
    return [copy.copy(op), copy.deepcopy(op), again]


@pytest.mark.parametrize("name", NAMES)
def test_p100_operations_are_told_whatever_they_come_as(name: str) -> None:
    kind = getattr(dist.ReduceOp, name)
    whole = dist.ReduceOp(kind)
    assert isinstance(kind, dist.ReduceOp)
    for op in (kind, whole, *copies(whole)):
        assert op == kind
        assert to_reduce_op(op) is getattr(ah.ReduceOp, name)


def test_p100_a_factor_is_told_too() -> None:
    for factor in (3, 0.25):
        op = dist._make_nccl_premul_sum(float(factor))
        assert isinstance(op, dist.ReduceOp)
        for one in (op, *copies(op)):
            assert to_reduce_op(one) == ah.ReduceOp.premul_sum(float(factor))


@on_ranks(2)
def test_p100_a_sum_of_multiples(rank: int) -> None:
    """Gloo has none."""
    op = dist._make_nccl_premul_sum(0.5)
    for make in (torch.float32, torch.bfloat16, torch.float64):
        x = torch.tensor([rank + 1.0, 4.0]).to(make)
        dist.all_reduce(x, op)
        equal(x, torch.tensor([1.5, 4.0]).to(make))


@on_ranks(2, environment={"LOCAL_RANK": "5"})
def test_p101_the_rank_of_a_process_on_its_node() -> None:
    assert dist.get_node_local_rank() == 5


@on_ranks(2)
def test_p101_the_rank_on_a_node_of_which_nobody_told(rank: int) -> None:
    assert dist.get_node_local_rank(fallback_rank=7) == 7
    with pytest.raises(RuntimeError, match="LOCAL_RANK"):
        dist.get_node_local_rank()


# ---------------------------------------------------------------- works


@on_ranks(2)
def test_p114_a_work_says_how_its_call_goes(rank: int) -> None:
    x = torch.full((2,), rank + 1.0)
    if rank == 1:
        dist.recv(torch.zeros(1), 0)  # until the other has looked
    work = dist.all_reduce(x, async_op=True)
    if rank == 0:
        assert not work.is_completed()
        assert not work.is_success()
        assert work.exception() is None
        dist.send(torch.zeros(1), 1)
    assert work.wait() is True
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    work.synchronize()
    equal(work.result(), [torch.full((2,), 3.0)])
    assert work.result()[0] is x
    future = work.get_future()
    assert future.done()
    equal(future.value(), [x])
    assert future.then(lambda done: done.value()[0].sum().item()).wait() == 6


@on_ranks(2)
def test_p114_a_wait_that_may_take_a_little_leaves_the_call_as_it_is(rank: int) -> None:
    if rank == 1:
        dist.recv(torch.zeros(1), 0)
        dist.all_reduce(torch.ones(1))
        return
    x = torch.ones(1)
    work = dist.all_reduce(x, async_op=True)
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match=r"has not ended within 0.05 s; it goes on"):
        work.wait(timedelta(milliseconds=50))
    assert time.monotonic() - begun < 20
    assert not work.is_completed()
    dist.send(torch.zeros(1), 1)
    assert work.wait(timedelta(seconds=20))
    assert x.item() == 2


@on_ranks(2)
def test_p114_a_call_that_fails_says_so_wherever_it_is_asked(rank: int) -> None:
    pg = dist.new_group(timeout=timedelta(milliseconds=200))
    if rank == 0:
        work = dist.all_reduce(torch.ones(1), group=pg, async_op=True)
        with pytest.raises(RuntimeError, match="rank 1"):
            work.wait()
        assert work.is_completed()
        assert not work.is_success()
        assert isinstance(work.exception(), TimeoutError)
        with pytest.raises(RuntimeError, match="rank 1"):
            work.get_future().wait()
        with pytest.raises(RuntimeError, match="rank 1"):
            work.result()
    dist.barrier()


@on_ranks(2)
def test_p114_a_receive_knows_its_source(rank: int) -> None:
    if rank == 1:
        dist.send(torch.ones(1), 0)
        return
    x: Any = torch.zeros(1)
    work = dist.irecv(x)
    work.wait()
    assert work._source_rank() == 1
    assert x.item() == 1


@on_ranks(2)
def test_p107_the_label_of_a_call_is_recorded(rank: int) -> None:
    """PyTorch's, in profiles."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(4))
        dist.broadcast(torch.ones(4), 0)
    names = {event.name for event in profile.events()}
    assert {"allhands:all_reduce", "allhands:broadcast"} <= names


@on_ranks(2)
def test_p107_calls_have_the_label_that_record_comm_gives(rank: int) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        with dist.record_comm("step 1: sum"):
            dist.all_reduce(torch.ones(4))
            with dist.record_comm("step 1: inside"):
                dist.barrier()
            work = dist.broadcast(torch.ones(4), 0, async_op=True)
        work.wait()
        dist.all_gather([torch.zeros(1), torch.zeros(1)], torch.ones(1))
    found = Counter(event.name for event in profile.events())
    assert (found["step 1: sum"], found["step 1: inside"]) == (2, 1)
    assert found["allhands:all_gather"] == 1
    assert not {"allhands:all_reduce", "allhands:broadcast"} & found.keys()
