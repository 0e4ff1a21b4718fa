"""Fake worlds on the PyTorch face: any rank of any size, in one process, with tensors."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.distributed.fake_pg import FakeStore

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

PLACES = [(0, 1), (1, 2), (6, 7), (999, 1000)]


@pytest.fixture(params=PLACES, ids=lambda place: f"{place[0]}of{place[1]}")
def place(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """Yield a rank and a world size, in a fake world."""
    rank, size = request.param
    dist.init_process_group("allhands", init_method="fake://", rank=rank, world_size=size)
    yield rank, size
    dist.destroy_process_group()


@pytest.fixture
def four() -> Iterator[None]:
    """Be rank 1 of a fake world of 4, with the store of PyTorch's own tests."""
    store = FakeStore()
    dist.init_process_group("allhands", rank=1, world_size=4, store=store)
    yield
    dist.destroy_process_group()


def test_p095_every_call_ends_and_keeps_shapes_and_types(place: tuple[int, int]) -> None:
    rank, size = place
    assert (dist.get_rank(), dist.get_world_size()) == place
    assert dist.get_backend() == "allhands"
    x = torch.arange(6.0).view(2, 3)
    parts = [torch.zeros(2, 3) for _ in range(size)]

    reduced = x.clone()
    dist.all_reduce(reduced)
    assert reduced.tolist() == (x * size).tolist()
    dist.all_gather(parts, x)
    assert all(part.tolist() == x.tolist() for part in parts)
    out = torch.empty(2, 3)
    dist.reduce_scatter(out, parts)
    assert out.shape == (2, 3)
    for root in {0, rank, size - 1}:
        dist.broadcast(out, root)
        dist.scatter(out, parts if root == rank else None, src=root)
        dist.gather(out, parts if root == rank else None, dst=root)
        dist.reduce(out, root)
        assert out.shape == (2, 3)
    dist.all_to_all(parts, [x] * size)
    whole = torch.empty(size, 3)
    dist.all_to_all_single(whole, torch.ones(size, 3), [1] * size, [1] * size)
    assert whole.tolist() == [[1.0] * 3] * size
    dist.all_gather_single(torch.empty(2 * size, 3), x)
    dist.barrier()


def test_p095_messages_go_nowhere_and_leave_what_is_there(four: None) -> None:
    x = torch.ones(3, 3)
    dist.send(x, 0)
    dist.recv(x, 3)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x, 2), dist.P2POp(dist.irecv, x, 0)]
    ):
        work.wait()
    assert x.tolist() == [[1.0] * 3] * 3
    group = dist.new_group([1, 2])
    assert (dist.get_rank(group), dist.get_world_size(group)) == (0, 2)
    dist.all_reduce(x, group=group)
    assert x[0].tolist() == [2.0] * 3


def test_p095_what_a_real_world_refuses_is_refused(four: None) -> None:
    with pytest.raises(RuntimeError, match="invalid tensor type"):
        dist.group.WORLD.allgather([[torch.ones(2) for _ in range(4)]], [torch.ones(2).int()])
    with pytest.raises(RuntimeError, match="invalid root rank"):
        dist.group.WORLD.broadcast(torch.ones(2), root=4)


def test_a_fake_world_wants_to_know_who_this_is() -> None:
    with pytest.raises(ValueError, match=r"fake:// needs rank and world_size"):
        dist.init_process_group("allhands", init_method="fake://", world_size=2)


def layers() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def train(net: Any) -> None:
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(2):
        net(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_p096_fsdp_is_built_and_trained(four: None) -> None:
    net = FSDP(layers(), device_id=torch.device("cpu"), use_orig_params=True)
    train(net)
    assert sum(one.numel() for one in net.parameters()) <= (2 * 72) / 4 + 2
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    net = fully_shard(layers(), mesh=mesh)
    train(net)
    assert next(net.parameters()).to_local().shape == (4, 8)


def test_p096_tensor_parallel_with_fsdp_on_a_mesh(four: None) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for plan in (
        {"0": ColwiseParallel(), "2": RowwiseParallel()},
        {
            "0": ColwiseParallel(input_layouts=Shard(0)),
            "2": RowwiseParallel(output_layouts=Shard(0)),
        },
    ):
        net = parallelize_module(layers(), mesh["tp"], plan)
        train(
            FSDP(net, device_id=torch.device("cpu"), device_mesh=mesh["dp"], use_orig_params=True)
        )


def test_p096_functional_calls_are_traced_and_compiled(four: None) -> None:
    def gathered(x: Any) -> Any:
        return funcol.all_gather_tensor(x, 0, dist.group.WORLD)

    graph = make_fx(gathered)(torch.randn(2, 2))
    assert re.search(r"all_gather_into_tensor(.|\n)*wait_tensor", str(graph.graph))
    assert graph(torch.ones(2, 2)).shape == (8, 2)


def test_p071_a_function_compiles_to_one_graph_in_a_fake_world(four: None) -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def reduced(x: Any) -> Any:
        return funcol.all_reduce(x, "sum", dist.group.WORLD)

    assert reduced(torch.ones(8)).tolist() == [4.0] * 8
