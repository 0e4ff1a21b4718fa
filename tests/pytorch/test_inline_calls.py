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
    ins, outs = [torch.ones(2), torch.ones(2)], [torch.ones(2), torch.ones(2)]
    given, filled = (ins, outs) if dist.get_rank() == 0 else (None, None)
    return {
        "all_reduce": lambda: dist.all_reduce(x),
        "broadcast": lambda: dist.broadcast(x, 0),
        "reduce": lambda: dist.reduce(x, 0),
        "barrier": lambda: dist.barrier(),
        "all_gather": lambda: dist.all_gather_single(output, x),
        "reduce_scatter": lambda: dist.reduce_scatter_single(x, output),
        "all_to_all": lambda: dist.all_to_all_single(output, torch.ones(4)),
        "gather": lambda: dist.gather(x, filled, 0),
        "scatter": lambda: dist.scatter(x, given, 0),
        "all_gather of lists": lambda: dist.all_gather(outs, x),
        "reduce_scatter of lists": lambda: dist.reduce_scatter(x, ins),
        "all_to_all of lists": lambda: dist.all_to_all(outs, ins),
        "gather in flight": lambda: dist.gather(x, filled, 0, async_op=True).wait(),
        "scatter in flight": lambda: dist.scatter(x, given, 0, async_op=True).wait(),
        "all_gather of lists in flight": lambda: dist.all_gather(outs, x, async_op=True).wait(),
        "reduce_scatter of lists in flight": lambda: dist.reduce_scatter(
            x, ins, async_op=True
        ).wait(),
        "all_to_all of lists in flight": lambda: dist.all_to_all(outs, ins, async_op=True).wait(),
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
        lists = {"_gather", "_scatter", "_all_gather", "_reduce_scatter", "_all_to_all"}
        assert len(entered) <= (19 if lists & {*entered} else 13), (name, entered)


@on_ranks(2)
def test_lists_of_tensors_have_their_results(rank: int) -> None:
    dist.barrier()
    x = torch.full((2, 3), rank + 1.0)
    ins = [torch.full((2, 3), 10.0 * rank + at) for at in range(2)]
    outs = [torch.zeros(2, 3) for _ in range(2)]

    dist.all_gather(outs, x)
    assert [one.unique().tolist() for one in outs] == [[1.0], [2.0]]
    dist.all_to_all(outs, ins)
    assert [one.unique().tolist() for one in outs] == [[rank + 0.0], [rank + 10.0]]
    dist.scatter(x, ins if rank == 1 else None, 1)
    assert x.unique().tolist() == [rank + 10.0]
    dist.reduce_scatter(x, ins)
    assert x.unique().tolist() == [2 * rank + 10.0]
    dist.gather(x, outs if rank == 1 else None, 1)
    if rank == 1:
        assert [one.unique().tolist() for one in outs] == [[10.0], [12.0]]
    work = _world().allgather([outs], [x])
    work.wait()
    assert work.result()[0] is outs[0]


@on_ranks(2)
def test_lists_that_do_not_fit_are_refused_by_the_checks(rank: int) -> None:
    dist.barrier()
    x, flat = torch.ones(2, 3), [torch.ones(6), torch.ones(6)]
    with pytest.raises(ValueError, match="invalid tensor size"):
        dist.all_gather(flat, x)
    with pytest.raises(ValueError, match="expected length 2, got 1"):
        dist.all_gather([x], x)
    with pytest.raises(ValueError, match="same length"):
        _world().allgather([[x, x], [x, x]], [x])
    with pytest.raises(ValueError, match="single-element"):
        _world().reduce_scatter([x], [[x, x], [x, x]])
    whole = torch.zeros(9)
    with pytest.raises(ValueError, match="share memory"):
        dist.all_gather([whole[:6], whole[3:]], torch.ones(6))
    views = [torch.ones(3, 2).t(), torch.ones(3, 2).t()]  # copied, and back
    dist.all_gather(views, x + rank)
    assert [one.unique().tolist() for one in views] == [[1.0], [2.0]]


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
