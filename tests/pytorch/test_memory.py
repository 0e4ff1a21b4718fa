"""Tensors with lent memory stay tensors: resizable, kept and changed as before."""

import torch
import torch.distributed as dist

from support.torch.ranks import on_ranks


@on_ranks(2)
def test_a_tensor_can_be_resized_once_its_call_has_ended(rank: int) -> None:
    x = torch.full((4,), rank + 1.0)
    dist.all_reduce(x)
    x.resize_(6)
    assert x[:4].tolist() == [3.0] * 4
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(24)
    dist.broadcast(x.fill_(rank), 1)
    assert x.tolist() == [1.0] * 6


@on_ranks(2)
def test_the_input_of_a_call_in_flight_may_be_forgotten(rank: int) -> None:
    whole = torch.empty(2 << 20)
    work = dist.all_gather_single(whole, torch.full((1 << 20,), rank + 1.0), async_op=True)
    other = torch.zeros(1 << 20)
    work.wait()
    assert whole[: 1 << 20].eq(1).all()
    assert whole[1 << 20 :].eq(2).all()
    assert other.eq(0).all()


@on_ranks(2)
def test_tensors_without_elements_have_memory_too(rank: int) -> None:
    for x in (torch.empty(0), torch.empty(3, 0, dtype=torch.bfloat16)):
        dist.all_reduce(x)
    scalar = torch.tensor(rank + 1.0)
    dist.all_reduce(scalar)
    assert scalar.item() == 3
