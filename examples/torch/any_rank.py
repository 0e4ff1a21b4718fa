"""Be one rank of a large world, alone: see what it will hold, and that its program runs.

    python examples/torch/any_rank.py
    python examples/torch/any_rank.py --rank 4095 --ranks 4096 --tensor 16

In a fake world every call ends at once, with shapes, groups and checks as in a real one. A model is
spread over a mesh of ranks of which this is the only one, and trained for a step. It prints what
this rank holds of the model, which ranks it talks to, and how often.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH = 1024


def be(rank: int, ranks: int, tensor: int) -> list[str]:
    """Train for a step as that rank, and return what there is to say."""
    dist.init_process_group("allhands", init_method="fake://", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks // tensor, tensor), mesh_dim_names=("data", "tensor"))
    model = nn.Sequential(
        nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH), nn.Tanh()
    )
    whole = sum(one.numel() for one in model.parameters())
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    with CommDebugMode() as calls:
        model(torch.ones(8, WIDTH, requires_grad=True)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    here = sum(one.to_local().numel() for one in model.parameters())
    neighbours = dist.get_process_group_ranks(mesh.get_group("tensor"))
    counts = {str(name).split(".")[-1]: count for name, count in calls.get_comm_counts().items()}
    dist.destroy_process_group()
    return [
        f"rank {rank} of {ranks} holds {here} of {whole} parameters",
        f"it shares layers with ranks {neighbours[0]} to {neighbours[-1]}",
        f"a step makes {sum(counts.values())} calls: {counts}",
    ]


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rank", type=int, default=1000)
    options.add_argument("--ranks", type=int, default=1024)
    options.add_argument("--tensor", type=int, default=8, help="ranks that share layers")
    chosen = options.parse_args()
    print(*be(chosen.rank, chosen.ranks, chosen.tensor), sep="\n")


if __name__ == "__main__":
    main()
