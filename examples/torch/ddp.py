"""Train a network with DistributedDataParallel, and compare what communication hooks make of it.

    allhands run -n 4 examples/torch/ddp.py
    torchrun --nproc-per-node 4 examples/torch/ddp.py
    allhands run -n 4 examples/torch/ddp.py --hook power_sgd
    allhands run -n 4 examples/torch/ddp.py --backend gloo

Two spirals are to be told apart. Every rank has points of its own, and prints nothing but what rank
0 says: the loss over all ranks' points every few steps, and how many points end on the right side.
The losses are those of Gloo to float rounding. Of the hooks, bf16 and power_sgd with its several
buckets work over allhands alone: DDP refuses the one over Gloo, the other may hang there.
"""

import argparse
import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

POINTS = 256
"""Of each rank."""


def spirals(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points of a plane, and on which of two spirals each is."""
    made = torch.Generator().manual_seed(100 + rank)
    turns = 1.5 * torch.rand(POINTS, generator=made).sqrt()
    side = torch.arange(POINTS) % 2
    angle = 2 * math.pi * turns + math.pi * side
    noise = 0.02 * torch.randn(POINTS, 2, generator=made)
    points = torch.stack([turns * angle.cos(), turns * angle.sin()], 1) + noise
    return points, side


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
    )


def register(model: DistributedDataParallel, name: str) -> None:
    """Let a hook average the gradients."""
    if name == "power_sgd":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=2, start_powerSGD_iter=5, min_compression_rate=1
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif name != "none":
        hook: Any = {
            "allreduce": default_hooks.allreduce_hook,
            "fp16": default_hooks.fp16_compress_hook,
            "bf16": default_hooks.bf16_compress_hook,
        }[name]
        model.register_comm_hook(None, hook)


def train(steps: int, hook: str = "none") -> tuple[list[float], float]:
    """Return the loss over all ranks' points before each step, and the accuracy at the end."""
    points, side = spirals(dist.get_rank())
    model = DistributedDataParallel(network(), bucket_cap_mb=0.01)
    register(model, hook)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(points), side)
        loss.backward()
        optimizer.step()
        losses.append(mean(loss.detach()))
    right = (model(points).argmax(1) == side).float().mean()
    return losses, mean(right)


def mean(x: torch.Tensor) -> float:
    """Return the mean of what the ranks have."""
    total = x.clone()
    dist.all_reduce(total)
    return float(total / dist.get_world_size())


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--backend", default="allhands")
    options.add_argument("--hook", default="none")
    options.add_argument("--steps", type=int, default=300)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(chosen.backend)
    losses, accuracy = train(chosen.steps, chosen.hook)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks over {dist.get_backend()}, hook: {chosen.hook}")
        for step in range(0, chosen.steps, max(chosen.steps // 10, 1)):
            print(f"step {step:4}  loss {losses[step]:.6f}")
        print(f"{accuracy:.1%} of {POINTS * dist.get_world_size()} points are on the right side")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
