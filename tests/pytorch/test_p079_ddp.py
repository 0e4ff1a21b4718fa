"""DistributedDataParallel: as in one process; unused, sparse and left-out parameters."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._shard.sharded_tensor import Shard, ShardMetadata, init_from_local_shards
from torch.nn.parallel import DistributedDataParallel

from support.torch.ranks import on_ranks, run_ranks
from support.torch.training import (
    SMALL,
    assert_all_close,
    parallel,
    parameters,
    rows,
    trained,
    trained_alone,
)

SIZE = 3


def test_p079_data_parallel_training_equals_training_in_one_process():
    options: list[dict[str, Any]] = [
        {},
        {"bucket_cap_mb": SMALL},
        {"bucket_cap_mb": SMALL, "gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True, "init_sync": False},
    ]

    def body(rank: int) -> list[list[float]]:
        found = []
        for one in options:
            model = parallel(**one)
            trained(model, rows(rank))
            found.append(parameters(model))
        return found

    wanted = trained_alone(SIZE)
    of_ranks = run_ranks(SIZE, body)
    for found in of_ranks[0]:
        assert_all_close(found, wanted, rtol=1e-4)
    assert of_ranks[1:] == of_ranks[:-1]


@on_ranks(2)
def test_p079_gradients_live_in_the_buckets_where_that_is_asked_for(rank: int) -> None:
    model = parallel(gradient_as_bucket_view=True)
    places = None
    for x, _ in rows(rank, 4):
        model.zero_grad(set_to_none=False)
        model(x).sum().backward()
        now = [one.grad.data_ptr() for one in model.parameters()]
        places = places if places and places == now else now
    assert places == [one.grad.data_ptr() for one in model.parameters()]
    storages = {one.grad.untyped_storage().data_ptr() for one in model.parameters()}
    assert len(storages) == 1


@on_ranks(2)
def test_p079_steps_without_synchronisation_add_up_to_the_next_one_with(rank: int) -> None:
    model = parallel()
    (first, _), (second, _) = rows(rank, 2)
    with model.no_sync():
        model(first).sum().backward()
    mine = [one.grad.clone() for one in model.parameters()]
    model(second).sum().backward()
    beside = parallel()
    beside(second).sum().backward()
    for one, kept, other in zip(model.parameters(), mine, beside.parameters(), strict=True):
        dist.all_reduce(kept, dist.ReduceOp.AVG)
        torch.testing.assert_close(one.grad, other.grad + kept)


@on_ranks(2)
def test_p079_buffers_and_parameters_are_those_of_the_first_rank(rank: int) -> None:
    torch.manual_seed(rank)
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    module[1].running_mean.fill_(rank + 5.0)
    model = DistributedDataParallel(module)
    seen: list[Any] = [None, None]
    dist.all_gather_object(seen, [one.tolist() for one in model.state_dict().values()])
    assert seen[0] == seen[1]
    assert model.module[1].running_mean.eq(5).all()


# ---------------------------------------------------------------- unused


class Task(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.ones(2, 2))

    def forward(self, x: Any) -> torch.Tensor:
        return self.p * x


class Tasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.t0, self.t1, self.unused = Task(), Task(), Task()

    def forward(self, x: Any, which: int) -> torch.Tensor:
        return self.t0(x) if which == 0 else self.t1(x)


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.t0, self.t1 = Task(), Task()

    def forward(self, x: Any, uses_all: bool) -> torch.Tensor:
        return self.t1(self.t0(x)) if uses_all else self.t1(x)


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}], ids=["", "views"])
def test_p080_unused_on_some_ranks_and_on_all(options: dict[str, Any]) -> None:
    @on_ranks(2)
    def test(rank: int) -> None:
        model = DistributedDataParallel(Tasks(), find_unused_parameters=True, **options)
        for _ in range(2):
            model.zero_grad()
            model(8, rank).mean().backward()
            assert model.module.t0.p.grad.eq(1).all()  # a quarter of 8 there, 0 here
            assert model.module.t1.p.grad.eq(1).all()
            assert model.module.unused.p.grad is None

    test()


@pytest.mark.filterwarnings("ignore:You passed find_unused_parameters:UserWarning")
@pytest.mark.parametrize("backend", ["allhands", "gloo"])
@pytest.mark.parametrize("finds", [False, True], ids=["static", "static and unused"])
def test_p080_a_static_graph_finds_what_is_unused_once(finds: bool, backend: str) -> None:
    def body(rank: int) -> None:
        model = DistributedDataParallel(Tasks(), static_graph=True, find_unused_parameters=finds)
        for _ in range(3):
            model.zero_grad()
            output = model(8, rank)
            assert all(one.grad is None for one in model.parameters())
            output.mean().backward()
            assert model.module.t0.p.grad.eq(1).all()
            assert model.module.t1.p.grad.eq(1).all()
            assert model.module.unused.p.grad is None

    run_ranks(2, body, backend=backend)


@on_ranks(2)
def test_p080_without_asking_for_it_unused_parameters_are_named(rank: int) -> None:
    model = DistributedDataParallel(Tasks())
    model(8, rank).mean().backward()
    with pytest.raises(RuntimeError, match="find_unused_parameters=True"):
        model(8, rank)


@on_ranks(2)
def test_p081_unused_on_one_rank_while_the_other_uses_all(rank: int) -> None:
    model = DistributedDataParallel(Chain(), find_unused_parameters=True)
    output = model(8, rank == 0)
    assert all(one.grad is None for one in model.parameters())
    output.mean().backward()
    assert model.module.t0.p.grad.eq(1).all()
    assert model.module.t1.p.grad.eq(2).all()


@pytest.mark.parametrize("finds", [False, True], ids=["", "unused parameters"])
def test_p082_output_may_be_ignored(finds: bool) -> None:
    @on_ranks(2)
    def test(rank: int) -> None:
        model = DistributedDataParallel(Chain() if finds else Task(), find_unused_parameters=finds)
        more = (False,) if finds else ()
        for _ in range(4):
            model(2.0, *more)
        for _ in range(4):
            model.zero_grad()
            model(rank * 4.0, *more).mean().backward()
        last = model.module.t1.p if finds else model.module.p
        assert last.grad.eq(0.5).all()

    test()


# ---------------------------------------------------------------- left out


@pytest.mark.filterwarnings("ignore:Please use DTensor:FutureWarning")
@on_ranks(2)
def test_p083_sharded_and_other_parameters_can_be_left_out(rank: int) -> None:
    placed = ShardMetadata(
        shard_offsets=[rank * 5, 0], shard_sizes=[5, 10], placement=f"rank:{rank}/cpu"
    )
    module = nn.Sequential(nn.Linear(2, 10, bias=False), nn.Linear(10, 2))
    sharded = init_from_local_shards([Shard(torch.randn(5, 10), placed)], [10, 10])
    module[1].register_parameter("sharded", nn.Parameter(sharded))
    with torch.no_grad():
        module[1].bias.fill_(rank)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        module, ["1.sharded", "1.bias"]
    )
    model = DistributedDataParallel(module)
    model(torch.full((1, 2), rank + 1.0)).sum().backward()
    assert module[1].bias.eq(rank).all()
    assert module[1].bias.grad.eq(1).all()
    seen: list[Any] = [None, None]
    dist.all_gather_object(seen, module[0].weight.grad.tolist())
    assert seen[0] == seen[1]


# ---------------------------------------------------------------- sparse


@pytest.mark.parametrize("views", [False, True], ids=["", "views"])
def test_p084_sparse_gradients_are_averaged(views: bool) -> None:
    @on_ranks(2)
    def test(rank: int) -> None:
        torch.manual_seed(0)
        alone = nn.Sequential(nn.EmbeddingBag(10, 3, sparse=True), nn.Linear(3, 2))
        torch.manual_seed(0)
        model = DistributedDataParallel(
            nn.Sequential(nn.EmbeddingBag(10, 3, sparse=True), nn.Linear(3, 2)),
            gradient_as_bucket_view=views,
        )
        indices = torch.tensor([[0, 1, 2], [2, 3, 3], [3, 9, 9], [0, 0, 1]])
        for _ in range(2):
            model.zero_grad()
            model(indices[2 * rank : 2 * rank + 2]).mean().backward()
        alone(indices).mean().backward()
        for one, other in zip(model.parameters(), alone.parameters(), strict=True):
            assert one.grad.layout is other.grad.layout
            torch.testing.assert_close(one.grad.to_dense(), other.grad.to_dense())

    test()
