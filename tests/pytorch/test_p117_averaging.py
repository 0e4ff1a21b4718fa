"""Periodic model averaging, and further companions of data-parallel training."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import (
    HierarchicalModelAverager,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from support.torch.ranks import on_ranks, run_ranks
from support.torch.training import (
    PostLocalSGDOptimizer,
    assert_all_close,
    loss_of,
    parallel,
    parameters,
    rows,
    trained,
)


def averaged(rank: int) -> list[list[float]]:
    """Return the losses of post-local SGD with each averager, and the parameters in the end."""
    pairs, _ = dist.new_subgroups(2)
    found = []
    for averager in (
        PeriodicModelAverager(period=2, warmup_steps=2),
        HierarchicalModelAverager(period_group_size_dict={2: 2, 4: 4}, warmup_steps=2),
    ):
        model = parallel()
        state = post_localSGD_hook.PostLocalSGDState(None, pairs, start_localSGD_iter=2)
        model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
        local = torch.optim.SGD(model.parameters(), lr=0.2)
        losses = trained(model, rows(rank), PostLocalSGDOptimizer(local, averager))
        found += [losses, parameters(model)]
    return found


def test_p117_models_that_are_averaged_now_and_then_are_those_of_gloo():
    found, wanted = run_ranks(4, averaged), run_ranks(4, averaged, backend="gloo")
    for mine, theirs in zip(found, wanted, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert_all_close(one, other, rtol=1e-4)
    assert found[0][0] != found[1][0]


@on_ranks(2)
def test_rows_are_loaded_by_processes_that_a_rank_has_forked(rank: int) -> None:
    """Loaders and the threads and connections of a rank do not hinder each other."""
    x = torch.arange(48.0).reshape(16, 3)
    dataset = TensorDataset(x, x.sum(1, keepdim=True))
    sampler: Any = DistributedSampler(dataset, shuffle=True, seed=3)
    loader = DataLoader(dataset, batch_size=2, sampler=sampler, num_workers=2)
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    seen: list[float] = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for given, wanted in loader:
            seen += given[:, 0].tolist()
            model.zero_grad()
            loss_of(model, given, wanted).backward()
    of_ranks: list[Any] = [None, None]
    dist.all_gather_object(of_ranks, seen)
    assert sorted([*of_ranks[0], *of_ranks[1]]) == sorted(x[:, 0].tolist() * 2)


@on_ranks(2)
def test_a_compiled_model_trains_as_one_that_is_not(rank: int) -> None:
    plain = trained(parallel(), rows(rank, 3))
    outside = parallel()
    optimizer = torch.optim.SGD(outside.parameters(), lr=0.2)
    compiled = torch.compile(outside, backend="aot_eager")
    assert_all_close(trained(compiled, rows(rank, 3), optimizer), plain)
