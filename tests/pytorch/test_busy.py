"""Ranks that keep the interpreter lock for long, as PyTorch's C++ may."""

import ctypes

import torch
import torch.distributed as dist

from support.torch.ranks import on_ranks

LONGER_THAN_A_HEARTBEAT_MAY_TAKE_ELSEWHERE = 6_500_000
"""Microseconds."""


@on_ranks(2)
def test_a_rank_that_keeps_the_interpreter_for_itself_is_not_lost(rank: int) -> None:
    x = torch.full((2,), rank + 1.0)
    if rank == 1:
        ctypes.PyDLL(None).usleep(LONGER_THAN_A_HEARTBEAT_MAY_TAKE_ELSEWHERE)
    dist.all_reduce(x)
    assert x.tolist() == [3.0, 3.0]
