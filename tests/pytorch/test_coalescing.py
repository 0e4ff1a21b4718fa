"""PyTorch's coalescing manager: many calls made as few."""

import pytest
import torch
import torch.distributed as dist

import allhands as ah
from support.torch.ranks import on_ranks

CPU = torch.device("cpu")


def made() -> list[str]:
    """Return the recorded calls of this rank."""
    return [one.operation for one in dist.group.WORLD.world.get_records()]


@pytest.mark.parametrize("device", [None, CPU])
@pytest.mark.parametrize("is_async", [False, True])
def test_calls_of_a_kind_travel_as_one(device: torch.device | None, is_async: bool) -> None:
    @on_ranks(2)
    def body(rank: int) -> None:
        sums = [torch.full((size,), rank + 1.0) for size in (3, 5, 7)]
        sums.append(torch.full((2, 3), rank + 1.0).t())
        with dist._coalescing_manager(device=device, async_ops=is_async) as block:
            for one in sums:
                dist.all_reduce(one)
        if is_async:
            block.wait()
        assert all(one.eq(3).all() for one in sums)

        outputs = [torch.empty(2 * size) for size in (2, 3)]
        with dist._coalescing_manager(device=device, async_ops=is_async) as block:
            for one in outputs:
                dist.all_gather_single(one, torch.full((len(one) // 2,), float(rank)))
        if is_async:
            block.wait()
        assert [one.tolist() for one in outputs] == [[0, 0, 1, 1], [0, 0, 0, 1, 1, 1]]

        outputs = [torch.empty(size) for size in (2, 3)]
        with dist._coalescing_manager(device=device, async_ops=is_async) as block:
            for one in outputs:
                dist.reduce_scatter_single(one, torch.arange(2.0 * len(one)) * (rank + 1))
        if is_async:
            block.wait()
        assert [one.tolist() for one in outputs] == (
            [[6, 9], [9, 12, 15]] if rank else [[0, 3], [0, 3, 6]]
        )
        assert len(made()) == 3

    body()


@on_ranks(3)
def test_with_a_device_calls_of_all_kinds_may_stand_in_a_block(rank: int) -> None:
    total, told = torch.full((4,), float(rank)), torch.full((2,), float(rank))
    largest, far = torch.full((3, 2), float(rank)).t(), torch.zeros(1)
    with dist._coalescing_manager(device=CPU):
        dist.broadcast(told, 1)
        dist.reduce(total, 0)
        dist.broadcast(largest, 2)
        assert told.tolist() == [rank] * 2  # it is made at the end
        if rank == 0:
            dist.send(torch.ones(1), 1)
        elif rank == 1:
            dist.recv(far, 0)
    assert told.tolist() == [1.0, 1.0]
    assert largest.eq(2).all()
    assert far.item() == (1.0 if rank == 1 else 0.0)
    if rank == 0:
        assert total.tolist() == [3.0] * 4


@on_ranks(2)
def test_what_fails_in_a_block_is_raised_at_its_end(rank: int) -> None:
    with (
        pytest.raises(ah.CollectiveMismatch),
        dist._coalescing_manager(device=CPU),
    ):
        dist.broadcast(torch.ones(2 + rank), 0)
    with dist._coalescing_manager(device=CPU, async_ops=True) as block:
        dist.broadcast(torch.ones(2 + rank), 0)
    [work] = block.works
    with pytest.raises(ah.CollectiveMismatch):
        work.wait()
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), ah.CollectiveMismatch)


@on_ranks(2)
def test_a_block_has_an_end_and_no_other_in_it(rank: int) -> None:
    group = dist.group.WORLD
    with pytest.raises(RuntimeError, match="are being collected"):
        group._end_coalescing(CPU)
    group._start_coalescing(CPU)
    with pytest.raises(RuntimeError, match="being collected already"):
        group._start_coalescing(CPU)
    assert group._end_coalescing(CPU).wait()
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == 2
