"""Pipelines of torch.distributed.pipelining over allhands, and messages below the pipelines."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleLoopedBFS,
)

from support.torch.ranks import on_ranks, run_ranks
from support.torch.training import assert_all_close

WIDTH = 6
PARTS = 4


def layers(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(1)
    return torch.randn(8, WIDTH, generator=made), torch.randn(8, WIDTH, generator=made)


def alone(count: int) -> list[float]:
    """Return the gradients of all layers in one process."""
    model = nn.Sequential(*layers(count))
    x, wanted = batch()
    nn.functional.mse_loss(model(x), wanted).backward()
    return gradients(model)


def gradients(model: Any) -> list[float]:
    return [x for one in model.parameters() for x in one.grad.flatten().tolist()]


def test_every_schedule_finds_the_gradients_of_one_process():
    size = 3

    def body(rank: int) -> dict[str, list[list[float]]]:
        x, wanted = batch()
        found = {}
        for kind, each in (
            (ScheduleGPipe, 1),
            (Schedule1F1B, 1),
            (ScheduleLoopedBFS, 2),
            (ScheduleInterleaved1F1B, 2),
        ):
            mine = layers(size * each)[rank::size]
            stages = [
                PipelineStage(module, rank + size * at, size * each, torch.device("cpu"))
                for at, module in enumerate(mine)
            ]
            parts = size * 2
            schedule: Any = kind(
                stages if each > 1 else stages[0],  # type: ignore[arg-type]
                parts,
                loss_fn=nn.functional.mse_loss,
            )
            losses: list[torch.Tensor] = []
            x6, wanted6 = x[:6], wanted[:6]
            if rank == 0:
                schedule.step(x6)
            elif rank == size - 1:
                schedule.step(target=wanted6, losses=losses)
                assert len(losses) == parts
            else:
                schedule.step()
            found[kind.__name__] = [gradients(one) for one in mine]
        return found

    found = run_ranks(size, body)
    for each, names in ((1, ["ScheduleGPipe", "Schedule1F1B"]), (2, ["ScheduleLoopedBFS"])):
        model = nn.Sequential(*layers(size * each))
        x, wanted = batch()
        nn.functional.mse_loss(model(x[:6]), wanted[:6]).backward()
        for name in names:
            for at, module in enumerate(model):
                assert_all_close(found[at % size][name][at // size], gradients(module), rtol=1e-4)
    for of_rank in found:
        for one, other in zip(
            of_rank["ScheduleInterleaved1F1B"], of_rank["ScheduleLoopedBFS"], strict=True
        ):
            assert_all_close(one, other, rtol=1e-4)


@on_ranks(3)
def test_p108_messages_are_posted_together_in_any_order(rank: int) -> None:
    after, before = (rank + 1) % 3, (rank - 1) % 3
    given = [torch.full((5,), 10.0 * rank + at) for at in range(4)]
    taken = [torch.empty(5) for _ in range(4)]
    sends = [dist.P2POp(dist.isend, one, after) for one in given]
    receives = [dist.P2POp(dist.irecv, one, before) for one in taken]
    both = [*receives, *sends] if rank % 2 else [*sends, *receives]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    for at, one in enumerate(taken):
        assert one.eq(10 * before + at).all()


@on_ranks(2)
def test_p108_messages_within_a_group_are_named_by_its_ranks_or_the_worlds(rank: int) -> None:
    group = dist.new_group([1, 0])
    mine = dist.get_rank(group)
    x, y = torch.full((2,), float(rank)), torch.empty(2)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, x, group=group, group_peer=1 - mine),
            dist.P2POp(dist.irecv, y, 1 - rank, group=group),
        ]
    )
    for work in works:
        work.wait()
    assert y.eq(1 - rank).all()
