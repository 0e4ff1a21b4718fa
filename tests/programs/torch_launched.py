"""Ranks of torch.distributed, started by torchrun or `allhands run`.

This is a script: its first argument names a function, the others are for that.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def grow_and_shrink(seen: str) -> None:
    """Sum until the world has grown to two ranks (then `seen` exists) and shrunk to one again."""
    dist.init_process_group("allhands")
    print("worker", os.getpid(), flush=True)
    size, sign = dist.get_world_size(), Path(seen)
    if dist.get_rank() == 0:
        print("size", size, flush=True)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == size
        if size == 2:
            sign.touch()
        elif sign.exists():
            dist.destroy_process_group()
            print("alone again", flush=True)
            sys.exit()
        time.sleep(0.05)  # another node joins meanwhile, which nothing here tells of


def show_job() -> None:
    dist.init_process_group("allhands")
    x = torch.ones(1)
    dist.all_reduce(x)
    same = dist.group.WORLD.world.job == os.environ["ALLHANDS_JOB"]
    print("sum", x.item(), "local", dist.get_node_local_rank(), "same job", same)
    dist.destroy_process_group()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
