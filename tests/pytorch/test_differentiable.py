"""torch.distributed.nn's collectives, with gradients: as over Gloo, bit for bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed.nn

from support.torch.ranks import run_ranks

SIZE = 3
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.distributed:FutureWarning")


def _all(x: Any, rank: int) -> dict[str, Callable[[], Any]]:
    """Return calls on `x`, an array of a row for each rank."""
    nn = torch.distributed.nn
    rows = list(x)
    return {
        "all_reduce": lambda: nn.all_reduce(x * 1),
        "reduce": lambda: nn.reduce(x * 1, 1),
        "broadcast": lambda: nn.broadcast(x * 1, 2),
        "all_gather": lambda: torch.stack(nn.all_gather(x)),
        "gather": lambda: torch.stack(list(nn.gather(x, 1))),
        "scatter": lambda: nn.scatter(rows, 0),
        "reduce_scatter": lambda: nn.reduce_scatter(torch.empty(2), rows),
        "all_to_all": lambda: torch.stack(
            nn.all_to_all([torch.empty(2) for _ in range(SIZE)], rows)
        ),
        "all_to_all_single": lambda: nn.all_to_all_single(torch.empty(SIZE, 2), x),
    }


def test_gradients_go_back_through_every_collective() -> None:
    def body(rank: int) -> list[tuple[str, Any, Any]]:
        found = []
        for name in _all(torch.zeros(SIZE, 2), rank):
            x = torch.arange(2.0 * SIZE).reshape(SIZE, 2) + 10 * rank
            x.requires_grad_()
            y = _all(x, rank)[name]()
            weight = torch.arange(1.0, y.numel() + 1).reshape(y.shape) * (rank + 1)
            (y * weight).sum().backward()
            found.append((name, y.tolist(), x.grad.tolist()))
        return found

    ours, gloo = (run_ranks(SIZE, body, backend=one) for one in ("allhands", "gloo"))
    for rank, both in enumerate(zip(ours, gloo, strict=True)):
        for mine, theirs in zip(*both, strict=True):
            name, result, gradient = mine
            # On other ranks than the root nothing is written, where Gloo leaves what it worked on.
            if name not in ("reduce", "gather") or rank == 1:
                assert result == theirs[1], (rank, name)
            assert gradient == theirs[2], (rank, name)
            assert any(any(row) for row in gradient) or name in ("broadcast", "scatter"), name
