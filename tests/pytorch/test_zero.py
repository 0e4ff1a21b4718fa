"""ZeroRedundancyOptimizer over us: states shared out, saved, and stepped while DDP runs."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from support.torch.ranks import on_ranks, run_ranks
from support.torch.training import (
    SMALL,
    ZeroRedundancyOptimizer,
    assert_all_close,
    ddp_zero_hook,
    loss_of,
    parallel,
    parameters,
    rows,
    trained,
)

SIZE = 2
RATE = 0.05


def sharded(model: Any, kind: Any = torch.optim.Adam, **options: Any) -> Any:
    return ZeroRedundancyOptimizer(model.parameters(), kind, lr=RATE, **options)


def test_shared_out_states_train_as_whole_ones_also_over_gloo():
    def body(rank: int) -> list[list[float]]:
        whole = parallel()
        found = [trained(whole, rows(rank), torch.optim.Adam(whole.parameters(), lr=RATE))]
        for views in (False, True):
            model = parallel()
            optimizer = sharded(model, parameters_as_bucket_view=views)
            found.append(trained(model, rows(rank), optimizer))
            found.append(parameters(model))
        return found

    found = run_ranks(SIZE, body)
    for losses in found[0][1::2]:
        assert_all_close(losses, found[0][0], rtol=1e-4)
    assert found[0][2::2] == found[1][2::2]
    for mine, theirs in zip(found, run_ranks(SIZE, body, backend="gloo"), strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert_all_close(one, other, rtol=1e-4)


@on_ranks(SIZE)
def test_states_are_brought_together_and_shared_out_again(rank: int) -> None:
    model = parallel()
    optimizer = sharded(model)
    trained(model, rows(rank), optimizer)
    optimizer.consolidate_state_dict(to=1)
    if rank == 1:
        state = optimizer.state_dict()
        assert len(state["state"]) == len(list(model.parameters()))
    else:
        state = None
        with pytest.raises(RuntimeError, match="consolidate_state_dict"):
            optimizer.state_dict()
    given = [state]
    dist.broadcast_object_list(given, 1)
    again = sharded(model)
    again.load_state_dict(given[0])
    mine = sum(one.numel() for one in model.parameters() if one in again.optim.state)
    counts = [0] * SIZE
    dist.all_gather_object(counts, mine)
    assert 0 < mine < sum(counts) == sum(one.numel() for one in model.parameters())


@pytest.mark.filterwarnings("ignore:`TorchScript` support:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("way", ["hook_with_zero_step", "hook_with_zero_step_interleaved"])
def test_the_optimizer_steps_while_gradients_are_still_averaged(way: str) -> None:
    """PyTorch refuses these hooks over Gloo, where a hang is possible."""

    def body(rank: int) -> tuple[list[float], list[float]]:
        model = parallel(bucket_cap_mb=SMALL)
        optimizer = sharded(model, torch.optim.SGD, overlap_with_ddp=True)
        wrap = getattr(ddp_zero_hook, way)
        model.register_comm_hook(None, wrap(allreduce_hook, model, optimizer))
        batches = list(rows(rank))
        for x, wanted in batches[:1] * 2 + batches:  # two steps to see the buckets
            loss_of(model, x, wanted).backward()
            model.zero_grad()
        plain = parallel(bucket_cap_mb=SMALL)
        trained(plain, batches, torch.optim.SGD(plain.parameters(), lr=RATE))
        return parameters(model), parameters(plain)

    found = run_ranks(SIZE, body)
    assert found[0] == found[1]
    assert_all_close(*found[0], rtol=1e-4)
