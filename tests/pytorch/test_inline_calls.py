"""Calls of plain tensors go straight to the core, and are calls like all others."""

import sys
from collections.abc import Callable
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

import allhands as ah
from support.torch.ranks import on_ranks


def _list_functions(call: Callable[[], object]) -> list[str]:
    """Return the Python functions of allhands that a call enters."""
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and f"{ah.__name__}/torch" in frame.f_code.co_filename:
            entered.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


def _make_calls() -> dict[str, Callable[[], object]]:
    x, output = torch.ones(2), torch.ones(4)
    return {
        "all_reduce": lambda: dist.all_reduce(x),
        "broadcast": lambda: dist.broadcast(x, 0),
        "reduce": lambda: dist.reduce(x, 0),
        "barrier": lambda: dist.barrier(),
        "all_gather": lambda: dist.all_gather_single(output, x),
        "reduce_scatter": lambda: dist.reduce_scatter_single(x, output),
        "all_to_all": lambda: dist.all_to_all_single(output, torch.ones(4)),
        "all_reduce in flight": lambda: dist.all_reduce(x, async_op=True).wait(),
        "broadcast in flight": lambda: dist.broadcast(x, 0, async_op=True).wait(),
        "reduce in flight": lambda: dist.reduce(x, 0, async_op=True).wait(),
        "barrier in flight": lambda: dist.barrier(async_op=True).wait(),
        "all_gather in flight": lambda: dist.all_gather_single(output, x, async_op=True).wait(),
        "reduce_scatter in flight": lambda: dist.reduce_scatter_single(
            x, output, async_op=True
        ).wait(),
        "all_to_all in flight": lambda: dist.all_to_all_single(
            output, torch.ones(4), async_op=True
        ).wait(),
    }


@on_ranks(2)
def test_a_plain_tensor_is_looked_at_once(rank: int) -> None:
    for name, call in _make_calls().items():
        call()
        entered = _list_functions(call)
        assert not [one for one in entered if one.startswith("TensorViews.view")], (name, entered)
        assert len(entered) <= 13, (name, entered)


@on_ranks(2)
def test_the_work_of_an_ended_call_says_all_of_it(rank: int) -> None:
    dist.barrier()
    x = torch.full((3,), rank + 1.0)
    options = dist.AllreduceOptions()
    options.asyncOp = False
    work = _world().allreduce([x], options)
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert work.wait(timedelta(seconds=1)) is True
    assert work.result()[0] is x
    assert work.get_future() is work.get_future()
    assert work.get_future().wait()[0] is x
    assert work.native.operation == "all_reduce"
    assert work.native.sequence == _world()._get_sequence_number_for_group()
    assert "all_reduce" in repr(work)


@on_ranks(2)
def test_a_call_of_another_shape_is_refused_by_name(rank: int) -> None:
    dist.barrier()
    x = torch.ones(2 + rank)
    with pytest.raises(ah.CollectiveMismatch, match=r"all_reduce.*float32.*\[2\].*\[3\]"):
        dist.all_reduce(x)
    assert x.eq(1).all()


@on_ranks(2)
def test_a_deadline_that_has_passed_is_told_as_gloo_does(rank: int) -> None:
    dist.barrier()
    store = distributed_c10d._get_default_store()
    if rank == 0:
        options = dist.AllreduceOptions()
        options.asyncOp, options.timeout = False, timedelta(milliseconds=50)
        with pytest.raises(ah.CollectiveTimeout, match="Timed out waiting 50ms"):
            _world().allreduce([torch.ones(1)], options)
        store.set("the call has ended", "")
    store.wait(["the call has ended"])


@on_ranks(2)
def test_tensors_that_are_not_plain_get_their_second_look(rank: int) -> None:
    base = torch.arange(6.0).reshape(2, 3) + rank
    columns = base.t()
    dist.all_reduce(columns)
    assert columns.tolist() == [[1, 7], [3, 9], [5, 11]]

    negated = torch._neg_view(torch.full((1,), rank + 1.0))
    assert negated.is_contiguous()
    dist.all_reduce(negated, dist.ReduceOp.MAX)
    assert negated.tolist() == [-1.0]

    twin = torch.full((2,), rank + 1.0)
    lazy = torch._lazy_clone(twin)
    dist.all_reduce(lazy)
    assert lazy.tolist() == [3.0, 3.0]
    assert twin.tolist() == [rank + 1.0] * 2

    wanting = torch.ones(2, requires_grad=True)
    dist.all_reduce(wanting)
    assert wanting.tolist() == [2.0, 2.0]

    for empty in (torch.ones(0), torch.ones((1,) * 9)):
        dist.all_reduce(empty)
        assert empty.eq(2).all()

    freed = torch.ones(2)
    freed.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="no memory"):
        dist.all_reduce(freed)


def _world() -> Any:
    return distributed_c10d._get_default_group()
