"""Train where ranks have different numbers of batches: Join, DDP and ZeroRedundancyOptimizer.

    allhands run -n 4 examples/torch/uneven.py
    torchrun --nproc-per-node 4 examples/torch/uneven.py
    allhands run -n 4 examples/torch/uneven.py --backend gloo

Rank 0 has the fewest batches of a line's points. Within `Join` who has none left stands in for the
others' collectives, so nobody waits for ever; in the end all ranks have the same line. Each prints
its last loss. The losses are those of Gloo to float rounding.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

SLOPE, OFFSET = 3.0, -1.0


def batches(rank: int, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    made = torch.Generator().manual_seed(rank)
    xs = [torch.rand(16, 1, generator=made) for _ in range(count)]
    return [(x, SLOPE * x + OFFSET) for x in xs]


def train(least: int, epochs: int) -> tuple[list[float], list[float]]:
    """Return this rank's losses, and the line: its slope and its offset."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    losses = []
    for _ in range(epochs):
        with Join([model, optimizer]):
            for x, wanted in batches(rank, least + 2 * rank):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), wanted)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    return losses, [one.item() for one in model.parameters()]


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--backend", default="allhands")
    options.add_argument("--least", type=int, default=4)
    options.add_argument("--epochs", type=int, default=8)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(chosen.backend)
    losses, line = train(chosen.least, chosen.epochs)
    said = f"rank {dist.get_rank()}: {len(losses)} batches, last loss {losses[-1]:.6f}"
    everybody = [""] * dist.get_world_size()
    dist.all_gather_object(everybody, said)
    if dist.get_rank() == 0:
        print(*everybody, sep="\n")
        print(f"y = {line[0]:.3f} x {line[1]:+.3f}, of y = {SLOPE:.3f} x {OFFSET:+.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
