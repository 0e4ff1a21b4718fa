"""A small training with PyTorch, the same in every run: a network, rows for each rank, losses."""

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch scripts optimizers as it loads
    import torch._dynamo  # which DDP wants: read once for all ranks of a test, not in each
    from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook as ddp_zero_hook
    from torch.distributed.optim import PostLocalSGDOptimizer as PostLocalSGDOptimizer
    from torch.distributed.optim import ZeroRedundancyOptimizer as ZeroRedundancyOptimizer

STEPS = 6
ROWS = 8
"""Of each rank, in each step."""
SMALL = 0.001
"""MiB of a bucket by which the network has several."""


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3)
    )


def rows(rank: int, steps: int = STEPS) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield inputs and targets of each step of a rank."""
    made = torch.Generator().manual_seed(1 + rank)
    for _ in range(steps):
        yield torch.randn(ROWS, 6, generator=made), torch.randn(ROWS, 3, generator=made)


def loss_of(model: Any, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), wanted)


def trained(model: Any, batches: Any, optimizer: Any = None) -> list[float]:
    """Train with SGD, unless told otherwise; return the loss of each step."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.2)
    losses = []
    for x, wanted in batches:
        optimizer.zero_grad()
        loss = loss_of(model, x, wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def parameters(model: Any) -> list[float]:
    """Return all parameters, end to end."""
    return [x for one in model.parameters() for x in one.detach().flatten().tolist()]


def trained_alone(size: int, steps: int = STEPS) -> list[float]:
    """Return the parameters after a training in one process with the rows of all ranks."""
    model = network()
    of_ranks = [rows(rank, steps) for rank in range(size)]
    batches = [
        (torch.cat([x for x, _ in one]), torch.cat([wanted for _, wanted in one]))
        for one in zip(*of_ranks, strict=True)
    ]
    trained(model, batches)
    return parameters(model)


def parallel(**options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(network(), **options)


def assert_all_close(found: Any, wanted: Any, rtol: float = 1e-5) -> None:
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=rtol, atol=1e-6)
