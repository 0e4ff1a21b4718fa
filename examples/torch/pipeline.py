"""Train a network whose layers are on different ranks: torch.distributed.pipelining over allhands.

    allhands run -n 4 examples/torch/pipeline.py
    torchrun --nproc-per-node 4 examples/torch/pipeline.py
    allhands run -n 4 examples/torch/pipeline.py --schedule GPipe

Every rank has one stage. A batch is cut into microbatches, so that stages work at the same time;
what they hand on goes from point to point. The last rank prints the loss, the same whatever the
schedule.
"""

import argparse
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

WIDTH, MICROBATCHES, ROWS = 16, 8, 32
SCHEDULES: dict[str, Any] = {"1F1B": Schedule1F1B, "GPipe": ScheduleGPipe}


def stage() -> nn.Module:
    torch.manual_seed(dist.get_rank())
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


def train(steps: int, kind: str = "1F1B") -> list[float]:
    """Return the loss of each step on the last rank; on others an empty list."""
    rank, size = dist.get_rank(), dist.get_world_size()
    module = stage()
    part = PipelineStage(module, rank, size, torch.device("cpu"))
    schedule = SCHEDULES[kind](part, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    made = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, WIDTH, generator=made)
    wanted = 0.5 * torch.roll(x, 1, dims=1).tanh()
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        given = [x] if rank == 0 else []
        more = {"target": wanted, "losses": losses} if rank == size - 1 else {}
        schedule.step(*given, **more)
        optimizer.step()
        if losses:
            found.append(torch.stack(losses).mean().item())
    return found


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--backend", default="allhands")
    options.add_argument("--schedule", default="1F1B", choices=list(SCHEDULES))
    options.add_argument("--steps", type=int, default=200)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(chosen.backend)
    losses = train(chosen.steps, chosen.schedule)
    if losses:
        print(f"{dist.get_world_size()} stages, {MICROBATCHES} microbatches, {chosen.schedule}")
        for step in range(0, chosen.steps, max(chosen.steps // 10, 1)):
            print(f"step {step:4}  loss {losses[step]:.6f}")
        print(f"at the end  loss {losses[-1]:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
