"""Events of calls in PyTorch's profilers."""

from typing import Any

import torch
import torch.distributed as dist

from support.torch.ranks import run_ranks

Seen = list[tuple[str, list[list[int]], bool]]


def calls(rank: int) -> Seen:
    size = dist.get_world_size()
    x = torch.ones(2, 3)
    parts = [torch.ones(2, 3) for _ in range(size)]
    with torch.autograd.profiler.profile(record_shapes=True) as profile:
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        dist.reduce(x, 0)
        dist.all_gather(parts, x)
        dist.gather(x, parts if rank == 0 else None)
        dist.scatter(x, parts if rank == 0 else None)
        dist.all_to_all_single(torch.ones(size), torch.ones(size))
        dist.distributed_c10d._get_default_group().allreduce_coalesced([x, torch.ones(4)]).wait()
        if rank == 0:
            dist.isend(x, 1).wait()
        else:
            dist.recv(x, 0)
            dist.isend(x, 0).wait()
        if rank == 0:
            dist.recv(x)
    backend = dist.get_backend()
    events: Any = profile.function_events
    return sorted(
        (one.name.removeprefix(backend), one.input_shapes, one.is_async)
        for one in events
        if one.name.startswith(f"{backend}:")
    )


def test_each_call_is_an_event_with_the_name_and_shapes_that_gloo_gives_it() -> None:
    ours, theirs = run_ranks(2, calls), run_ranks(2, calls, backend="gloo")
    assert ours == theirs
    assert all(is_async for rank in ours for _, _, is_async in rank)
    assert len(ours[0]) == len(ours[1]) == 10


def test_a_refused_call_is_an_event_that_ended() -> None:
    def body(rank: int) -> tuple[list[str], bool]:
        with torch.autograd.profiler.profile() as profile:
            try:
                dist.distributed_c10d._get_default_group().allreduce([])
            except RuntimeError:
                dist.all_reduce(torch.ones(1))
        events: Any = profile.function_events
        named = [one for one in events if one.name == "allhands:all_reduce"]
        return [one.name for one in named], all(one.cpu_time_total >= 0 for one in named)

    assert run_ranks(2, body) == [(["allhands:all_reduce"] * 2, True)] * 2
