"""Sharded training: FSDP, fully_shard, tensor parallel, checkpoints; losses beside Gloo's."""

import os
import signal
import tempfile
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from support.torch.ranks import run_ranks

# PyTorch warns of what parts of it do, or will do another way.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

RANKS = 4
CPU = torch.device("cpu")
Curve = list[float]


def model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 4)
    )


def train(net: Any, data: int, optimizer: Any = None, steps: int = 4, clip: bool = False) -> Curve:
    """Return the losses of training on data of a given seed."""
    optimizer = optimizer or adam(net)
    source = torch.Generator().manual_seed(data)
    losses = []
    for _ in range(steps):
        x, y = (torch.randn(16, width, generator=source) for width in (8, 4))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses


def adam(net: Any) -> Any:
    return torch.optim.Adam(net.parameters(), lr=0.01, foreach=False)


def sharded(**options: Any) -> Any:
    net = model()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **options)
    fully_shard(net, **options)
    return net


# ---------------------------------------------------------------- what is trained


def fsdp(rank: int) -> dict[str, Curve]:
    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    curves = {
        strategy.name: train(
            FSDP(model(), device_id=CPU, sharding_strategy=strategy, use_orig_params=True), rank
        )
        for strategy in (
            ShardingStrategy.FULL_SHARD,
            ShardingStrategy.SHARD_GRAD_OP,
            ShardingStrategy.NO_SHARD,
        )
    }
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    hybrid = ShardingStrategy.HYBRID_SHARD
    curves["hybrid"] = train(
        FSDP(model(), device_id=CPU, sharding_strategy=hybrid, device_mesh=mesh), rank
    )
    curves["half"] = train(FSDP(model(), device_id=CPU, mixed_precision=half), rank)
    accumulating = FSDP(model(), device_id=CPU)
    with accumulating.no_sync():
        accumulating(torch.ones(2, 8) * rank).sum().backward()
    curves["accumulating"] = [accumulating.clip_grad_norm_(1.0).item()]
    accumulating(torch.ones(2, 8)).sum().backward()
    curves["accumulating"] += [accumulating.clip_grad_norm_(1.0).item()]
    return curves


def fully_sharded(rank: int) -> dict[str, Curve]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return {
        "plain": train(sharded(), rank),
        "not resharded": train(sharded(reshard_after_forward=False), rank),
        "half": train(sharded(mp_policy=half), rank),
        "hybrid": train(sharded(mesh=mesh), rank),
        "offloaded": train(sharded(offload_policy=CPUOffloadPolicy(pin_memory=False)), rank),
        "clipped": train(sharded(), rank, clip=True),
        "compiled": train(torch.compile(sharded(), backend="aot_eager"), rank),
    }


def tensor_parallel(rank: int) -> dict[str, Curve]:
    def parallel(mesh: Any) -> Any:
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        return parallelize_module(model(), mesh, plan)

    def in_sequence(mesh: Any) -> Any:
        plan = {
            "0": ColwiseParallel(),
            "2": RowwiseParallel(output_layouts=Shard(0)),
            "3": SequenceParallel(sequence_dim=0),
            "4": ColwiseParallel(
                input_layouts=Shard(0),
                output_layouts=Replicate(),
            ),
        }
        return parallelize_module(model(), mesh, plan)

    line = init_device_mesh("cpu", (RANKS,))
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    both = parallel(grid["tp"])
    for layer in both:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=grid["dp"])
    fully_shard(both, mesh=grid["dp"])
    return {
        "alone": train(model(), 7),
        "tensor": train(parallel(line), 7),
        "sequence": train(in_sequence(line), 7),
        "with fully_shard": train(both, rank // 2),
    }


@pytest.mark.parametrize("trained", [fsdp, fully_sharded, tensor_parallel])
def test_p118_sharded_programs_run_with_the_losses_that_they_have_over_gloo(
    trained: Callable[[int], dict[str, Curve]],
) -> None:
    mine, theirs = (
        run_ranks(RANKS, trained, backend=backend, deadline=100.0)
        for backend in ("allhands", "gloo")
    )
    for here, there in zip(mine, theirs, strict=True):
        assert here.keys() == there.keys()
        for name in here:
            # Sums of more than two numbers are not associative; of bfloat16 they are coarse.
            close = 2e-2 if name == "half" else 1e-5
            assert here[name] == pytest.approx(there[name], rel=close), name


def test_what_is_sharded_trains_as_what_is_not() -> None:
    def body(rank: int) -> tuple[Curve, Curve]:
        whole = model()
        optimizer = adam(whole)
        source = [torch.Generator().manual_seed(data) for data in range(RANKS)]
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            mine = 0.0
            for data in range(RANKS):
                x, y = (torch.randn(16, width, generator=source[data]) for width in (8, 4))
                loss = nn.functional.mse_loss(whole(x), y)
                (loss / RANKS).backward()
                mine = loss.item() if data == rank else mine
            optimizer.step()
            losses.append(mine)
        return losses, train(sharded(), rank)

    for alone, together in run_ranks(RANKS, body):
        assert together == pytest.approx(alone, rel=1e-4)


def test_a_checkpoint_of_four_ranks_goes_on_in_two_and_otherwise_sharded() -> None:
    with tempfile.TemporaryDirectory() as folder:

        def save(rank: int) -> Curve:
            net = sharded()
            optimizer = adam(net)
            train(net, 7, optimizer)
            state, steps = get_state_dict(net, optimizer)
            pending = dcp.async_save({"net": state, "steps": steps}, checkpoint_id=folder)
            pending.result(timeout=60)
            return train(net, 7, optimizer)

        def load(rank: int) -> Curve:
            plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
            net = parallelize_module(model(), init_device_mesh("cpu", (2,)), plan)
            optimizer = adam(net)
            train(net, 1, optimizer, steps=1)
            state, steps = get_state_dict(net, optimizer)
            dcp.load({"net": state, "steps": steps}, checkpoint_id=folder)
            set_state_dict(net, optimizer, model_state_dict=state, optim_state_dict=steps)
            return train(net, 7, optimizer)

        went_on = run_ranks(4, save)
        for again in run_ranks(2, load):
            assert again == pytest.approx(went_on[0], rel=1e-4)


def test_a_rank_that_dies_while_others_train_is_named_by_what_they_raise() -> None:
    def body(rank: int) -> str:
        net = sharded()
        train(net, rank, steps=2)
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(RuntimeError) as caught:
            train(net, rank, steps=50)
        return str(caught.value)

    for rank, text in enumerate(run_ranks(RANKS, body, dies=(2,))):
        assert rank == 2 or "rank 2 " in text


@pytest.mark.parametrize("backend", ["allhands", "gloo"])
def test_a_sharded_tensor_is_gathered_without_cuda(backend: str) -> None:
    from torch.distributed._shard import sharded_tensor  # which warns at its import
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    def body(rank: int) -> list[float] | None:
        placements: Any = [f"rank:{one}/cpu" for one in range(RANKS)]
        sharded = sharded_tensor.empty(ChunkShardingSpec(dim=0, placements=placements), 2 * RANKS)
        for shard in sharded.local_shards():
            shard.tensor.fill_(float(rank))
        out = torch.empty(2 * RANKS) if rank == 1 else None
        sharded.gather(dst=1, out=out)
        return None if out is None else list(out.tolist())

    found = run_ranks(RANKS, body, backend=backend)
    assert found[1] == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]


def test_the_backend_is_for_cuda_only_where_there_is_a_device() -> None:
    def body(rank: int) -> list[list[str]]:
        found = []
        torch.distributed.Backend.backend_capability["allhands"] = ["cpu", "cuda"]
        for count in (0, 2, 0):
            with mock.patch("torch.cuda.device_count", return_value=count):
                store = torch.distributed.HashStore()
                torch.distributed.init_process_group("allhands", store=store, rank=0, world_size=1)
            config = torch.distributed.BackendConfig("allhands")
            found.append([*config.get_device_backend_map()])
            torch.distributed.destroy_process_group()
        return found

    assert run_ranks(1, body, init=False) == [[["cpu"], ["cpu", "cuda"], ["cpu"]]]
