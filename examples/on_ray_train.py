"""Ray Train over allhands: workers of a TorchTrainer average their gradients.

    python examples/on_ray_train.py [WORKERS]

PyTorch finds the backend by its name where allhands is installed; rank 0 hosts the coordinator.
Needs `pip install 'allhands[torch]' 'ray[train]'`.
"""

import sys
import tempfile

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def train() -> None:
    """Take three steps on one worker, and compare the weights with those of the others."""
    import torch
    import torch.distributed as dist
    from ray.train.torch import prepare_model

    rank, size = dist.get_rank(), dist.get_world_size()
    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.full((2, 4), rank + 1.0)).sum().backward()
        optimizer.step()
    weights = next(model.parameters()).detach()
    everyone = [torch.empty_like(weights) for _ in range(size)]
    dist.all_gather(everyone, weights)
    same = all(torch.equal(one, weights) for one in everyone)
    print(f"rank {rank} of {size} over {dist.get_backend()}: weights equal: {same}", flush=True)


def main() -> None:
    """Train on so many workers."""
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    ray.init(num_cpus=workers, include_dashboard=False)
    TorchTrainer(
        train,
        torch_config=TorchConfig(backend="allhands"),
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(storage_path=tempfile.mkdtemp()),
    ).fit()


if __name__ == "__main__":
    main()
