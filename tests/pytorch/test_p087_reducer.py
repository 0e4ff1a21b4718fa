"""PyTorch's Reducer over a process group of allhands, and DDP's further calls."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from support.torch.ranks import on_ranks
from support.torch.training import assert_all_close, network, parallel, parameters, rows, trained

SIZE = 2


class Mixed(nn.Module):
    """A network with mixed precision: a first layer of float64, and an optional last layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(2, 10, bias=False).double()
        self.second = nn.Linear(10, 4, bias=False)
        self.third = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor, uses_third: bool = True) -> torch.Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x)).float()))
        return self.third(x) if uses_third else x


def reducer_of(model: nn.Module, buckets: Iterable[Iterable[int]], **options: Any) -> Any:
    given = list(model.parameters())
    found = [list(one) for one in buckets]
    limits = [dist._DEFAULT_FIRST_BUCKET_BYTES] * len(found)
    return dist.Reducer(given, found, limits, dist.group.WORLD, **options)


def by_dtype(model: nn.Module) -> list[list[int]]:
    given = list(model.parameters())
    return [list(one) for _, one in groupby(range(len(given)), key=lambda at: given[at].dtype)]


@on_ranks(1)
def test_p087_a_bucket_holds_one_dtype() -> None:
    reducer_of(network(), [range(6)])
    reducer_of(Mixed(), by_dtype(Mixed()))
    with pytest.raises(RuntimeError, match="same"):
        reducer_of(Mixed(), [range(3)])


@on_ranks(SIZE)
def test_p088_gradients_are_averaged_in_forward_and_backward(rank: int) -> None:
    model, alone = Mixed(), Mixed()
    reducer = reducer_of(model, by_dtype(model))
    x = torch.arange(12.0, dtype=torch.double).reshape(6, 2) - 3
    for _ in range(2):
        model.zero_grad()
        reducer.prepare_for_forward()
        output = model(x[3 * rank : 3 * rank + 3]).square().mean()
        reducer.prepare_for_backward(output)
        output.backward()
    alone(x).square().mean().backward()
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@on_ranks(SIZE)
def test_p088_unused_parameters_have_no_gradient(rank: int) -> None:
    model = Mixed()
    reducer = reducer_of(model, by_dtype(model), find_unused_parameters=True)
    reducer.prepare_for_forward()
    output = model(torch.full((3, 2), rank + 1.0, dtype=torch.double), uses_third=False).sum()
    reducer.prepare_for_backward(output)
    output.backward()
    assert model.third.weight.grad is None
    assert model.second.weight.grad is not None


@on_ranks(SIZE)
def test_p088_a_loop_with_an_optimizer_keeps_the_ranks_alike(rank: int) -> None:
    model = Mixed()
    reducer = reducer_of(model, by_dtype(model), find_unused_parameters=True)
    optimizer = torch.optim.Adam(model.parameters())
    before = parameters(model)
    reducer.prepare_for_forward()
    for step in range(3):
        x = torch.full((3, 2), rank - 0.5 * step, dtype=torch.double)
        optimizer.zero_grad()
        output = model(x, uses_third=step > 0).square().mean()
        reducer.prepare_for_backward(output)
        output.backward()
        optimizer.step()
    seen: list[Any] = [None] * SIZE
    dist.all_gather_object(seen, parameters(model))
    assert seen[0] == seen[1] != before


def test_p099_gradients_are_put_in_buckets_by_size_and_dtype():
    def buckets(shapes: list[tuple[int, torch.dtype]], limits: list[int]) -> list[list[int]]:
        given = [torch.empty(count, dtype=dtype) for count, dtype in shapes]
        found: list[list[int]] = dist._compute_bucket_assignment_by_size(given, limits)[0]
        return found

    single, double = torch.float, torch.double
    one_limit = [(100, single), (200, single), (100, single), (50, single)]
    assert buckets(one_limit, [400]) == [[0], [1], [2], [3]]
    assert buckets(one_limit, [801]) == [[0, 1], [2, 3]]
    mixed = [(50, single), (25, double), (50, single), (25, double), (50, single), (25, double)]
    assert buckets(mixed, [400]) == [[0, 2], [1, 3], [4], [5]]
    assert buckets([(10, single), (10, single), (10, single), (10, single)], [40, 80]) == [
        [0],
        [1, 2],
        [3],
    ]
    assert buckets(mixed, [200, 400]) == [[0], [1], [2, 4], [3, 5]]


# ---------------------------------------------------------------- what else DDP users have


class Recomputing(nn.Module):
    """Recomputes a layer in the backward pass; may use the layer twice or share its weight."""

    def __init__(self, times: int = 1, shares: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)
        self.times = times
        if shares:
            self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> Any:
        for _ in range(self.times):
            x = checkpoint(self.second, torch.tanh(self.first(x)), use_reentrant=False)
        return self.last(x)


@on_ranks(SIZE)
def test_p104_layers_that_are_recomputed_or_share_weights_train_as_others(rank: int) -> None:
    for options in ({}, {"shares": True}, {"times": 2}, {"times": 2, "shares": True}):
        alone = Recomputing(**options)
        given = [*zip(*(rows(one, 2) for one in range(SIZE)), strict=True)]
        both = [[torch.cat(column) for column in zip(*one, strict=True)] for one in given]
        trained(alone, both)
        for more in ({"static_graph": True}, {"gradient_as_bucket_view": True}):
            model = DistributedDataParallel(Recomputing(**options), **more)
            trained(model, rows(rank, 2))
            assert_all_close(parameters(model), parameters(alone), rtol=1e-4)


@dataclass
class Output:
    mean: torch.Tensor
    parts: "OrderedDict[str, torch.Tensor]"


class Dataclassed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> Output:
        x = self.used(x)
        return Output(x.mean(), OrderedDict(all=x))


@on_ranks(SIZE)
def test_p104_unused_parameters_are_found_through_dataclasses(rank: int) -> None:
    model = DistributedDataParallel(Dataclassed(), find_unused_parameters=True)
    for _ in range(2):
        output = model(torch.ones(3, 2) * rank)
        (output.mean + output.parts["all"].sum()).backward()
    assert model.module.unused.weight.grad is None
    seen: list[Any] = [None] * SIZE
    dist.all_gather_object(seen, model.module.used.weight.grad.tolist())
    assert seen[0] == seen[1]


@on_ranks(SIZE)
def test_p104_power_sgd_of_full_rank_averages_almost_exactly(rank: int) -> None:
    for feedback in (True, False):
        state = powerSGD_hook.PowerSGDState(
            None,
            matrix_approximation_rank=24,
            start_powerSGD_iter=2,
            use_error_feedback=feedback,
            warm_start=feedback,
            min_compression_rate=0.1,
        )
        model = parallel()
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        losses = trained(model, rows(rank))
        assert_all_close(losses, trained(parallel(), rows(rank)), rtol=2e-2)
