"""Calls of plain tensors over links go through the core, with the right values."""

import torch
import torch.distributed as dist

from support.torch.shared_world import SharedWorld

SIZE = 3
LINKS = SharedWorld(SIZE, environment={"ALLHANDS_BACKEND": "socket"})
CALLS = 60


def _check_calls(rank: int, number: int) -> None:
    x = torch.full((5,), rank + number, dtype=torch.float32)
    work = dist.all_reduce(x, async_op=number % 4 == 3)
    if work is not None:
        work.wait()
    assert x.tolist() == [SIZE * (SIZE - 1) / 2 + SIZE * number] * 5
    y = torch.full((3, 2), rank + 10 * number)
    dist.broadcast(y, number % SIZE)
    assert y.unique().tolist() == [number % SIZE + 10 * number]
    every = torch.empty(2 * SIZE, dtype=torch.int16)
    dist.all_gather_single(every, torch.full((2,), rank, dtype=torch.int16))
    assert every.tolist() == [at // 2 for at in range(2 * SIZE)]
    mine = torch.empty(2)
    dist.reduce_scatter_single(mine, torch.arange(2.0 * SIZE), op=dist.ReduceOp.AVG)
    assert mine.tolist() == [2.0 * rank, 2.0 * rank + 1]
    dist.barrier()


@LINKS
def test_calls_over_links_are_calls_of_the_core(rank: int) -> None:
    for number in range(CALLS):
        _check_calls(rank, number)
    group = dist.group.WORLD._get_backend(torch.device("cpu")).group
    direct = group.submitter.engine.order.direct_calls
    assert len(direct.records(10 * CALLS)) > CALLS
    work = dist.distributed_c10d._get_default_group().allreduce([torch.ones(2)])
    work.wait()
    assert "over links" in work.native.explain()
