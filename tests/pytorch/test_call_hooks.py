"""Call hooks on the groups of torch.distributed."""

import pytest
import torch
import torch.distributed as dist

import allhands as ah
from allhands.hooks import CallInfo, NotFinite
from support.torch.ranks import on_ranks


@on_ranks(2)
def test_calls_of_a_process_group_are_seen_by_hooks(rank: int) -> None:
    world = dist.group.WORLD
    assert world is not None
    seen: list[CallInfo] = []
    ended: list[str] = []
    x = torch.full((2, 3), float(rank + 1))
    dist.all_reduce(x)
    with ah.on_call(seen.append, lambda call, *_: ended.append(call.operation), group=world):
        dist.all_reduce(x)
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        work.wait()
        dist.broadcast(x, 1)
        found = [torch.empty(2, 3) for _ in range(2)]
        dist.all_gather(found, x)
        if rank == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        dist.barrier()
    dist.all_reduce(x)
    message = "recv" if rank else "send"
    expected = ["all_reduce", "all_reduce", "broadcast", "all_gather", message, "barrier"]
    assert [call.operation for call in seen] == expected
    assert ended == expected
    assert (seen[0].nbytes, seen[0].dtype, seen[0].rank) == (24, "float32", rank)
    assert x.tolist() == [[24.0] * 3] * 2


@on_ranks(2)
def test_nan_in_a_tensor_is_named(rank: int) -> None:
    x = torch.ones(4, dtype=torch.bfloat16)
    x[2] = torch.nan
    world = dist.group.WORLD
    assert world is not None
    with (
        ah.hooks.check_finite(group=world),
        pytest.raises(NotFinite, match=r"before all_reduce .*: x has nan at index 2"),
    ):
        dist.all_reduce(x)
    dist.barrier()
