"""Train a mixture of experts, one on each rank: rows go to who knows, and come back.

    allhands run -n 4 examples/torch/experts.py
    torchrun --nproc-per-node 4 examples/torch/experts.py
    allhands run -n 4 examples/torch/experts.py --compile
    allhands run -n 4 examples/torch/experts.py --backend gloo

Each point of a plane is sent to the expert of its quadrant by a functional all_to_all, as many as
there happen to be, and its answer comes back the same way; the gradients take that way too. With
`--compile` an expert and its collectives are one graph. The losses are those of Gloo.
"""

import argparse
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd

POINTS = 64
"""Of each rank."""

Ask = Callable[[torch.Tensor, list[int], list[int]], torch.Tensor]


class Expert(nn.Module):  # type: ignore[misc]
    """What one rank knows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(dist.get_rank())
        self.layers = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, points: torch.Tensor, going: list[int], coming: list[int]) -> torch.Tensor:
        """Return the answers to this rank's points, which are in the order of their experts."""
        world = dist.group.WORLD
        assert world is not None
        # Points have no gradient to bring back; answers have.
        asked = all_to_all_single(points, coming, going, world)
        answers: torch.Tensor = all_to_all_single_autograd(self.layers(asked), going, coming, world)
        return answers


def places(points: torch.Tensor) -> torch.Tensor:
    """Return the expert of each point: its quadrant, taken in turns."""
    quadrant = 2 * (points[:, 0] > 0) + (points[:, 1] > 0)
    return quadrant % dist.get_world_size()


def train(steps: int, backend: str = "") -> list[float]:
    """Return the loss over all ranks' points before each step.

    With a `backend` of the compiler, an expert is one graph.
    """
    model = Expert()
    ask: Ask = model
    if backend:
        ask = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    made = torch.Generator().manual_seed(100 + dist.get_rank())
    losses = []
    for _ in range(steps):
        points = torch.randn(POINTS, 2, generator=made)
        expert = places(points)
        points = points[expert.argsort(stable=True)]
        counts = expert.bincount(minlength=dist.get_world_size())
        back = torch.empty_like(counts)
        dist.all_to_all_single(back, counts)
        wanted = (points[:, :1] * points[:, 1:]).tanh()
        optimizer.zero_grad()
        answers = ask(points, counts.tolist(), back.tolist())
        loss = (answers - wanted).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(mean(loss.detach()))
    return losses


def mean(x: torch.Tensor) -> float:
    """Return the mean of what the ranks have."""
    total = x.clone()
    dist.all_reduce(total)
    return float(total.item() / dist.get_world_size())


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--backend", default="allhands")
    options.add_argument("--compile", action="store_true")
    options.add_argument("--steps", type=int, default=200)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(chosen.backend)
    losses = train(chosen.steps, "inductor" if chosen.compile else "")
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} experts over {dist.get_backend()}")
        for step in range(0, chosen.steps, max(chosen.steps // 10, 1)):
            print(f"step {step:4}  loss {losses[step]:.6f}")
        print(f"at the end     {losses[-1]:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
