"""Ends: groups destroyed, shut down and aborted in any order, worlds joined in sequence."""

import itertools
import os
import signal
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import allhands as ah
import allhands.torch
from allhands.testing.poll import poll_until
from support.torch.ranks import on_ranks, run_ranks


def total(group: Any = None) -> float:
    x = torch.full((2,), dist.get_rank() + 1.0)
    dist.all_reduce(x, group=group)
    return float(x[0])


def threads() -> list[str]:
    """Return the names of this package's threads running here."""
    return [one.name for one in threading.enumerate() if one.name.startswith("allhands ")]


def rejoin(rank: int, size: int, store: Any) -> None:
    dist.init_process_group(
        "allhands", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30)
    )


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_groups_may_be_shut_down_in_any_order_and_more_than_once(order: tuple[int, ...]) -> None:
    def body(rank: int) -> None:
        groups = [dist.group.WORLD, dist.new_group([0, 1]), dist.new_group([1, 0])]
        assert [total(one) for one in groups] == [3, 3, 3]
        for at in order:
            groups[at].shutdown()
            groups[at].shutdown()
            with pytest.raises(RuntimeError, match=r"was destroyed|left its world"):
                groups[at].barrier().wait()
            groups[at].abort()  # of what is over already
        dist.destroy_process_group()
        assert not dist.is_initialized()
        poll_until(lambda: threads() == [])  # those of groups are told to end, and not waited for

    run_ranks(2, body)


@on_ranks(2)
def test_an_aborted_part_releases_its_ranks_and_leaves_the_world_alone(rank: int) -> None:
    part = dist.new_group([0, 1])
    if rank == 0:
        part.abort()
    with pytest.raises(ah.GroupAborted, match=r"rank 0 .* aborted it: its process group was") as it:
        dist.barrier(part)
    assert it.value.by.startswith("rank 0")
    with pytest.raises(ah.GroupAborted):
        dist.all_reduce(torch.ones(1), group=part)
    assert total() == 3
    dist.destroy_process_group(part)
    assert total(dist.new_group([0, 1])) == 3


@on_ranks(2)
def test_an_aborted_world_may_be_recovered(rank: int) -> None:
    """A watching thread may release the hanging thread: no rank need have been lost."""
    stuck = torch.ones(1)
    if rank == 0:
        dist.group.WORLD.abort()
    with pytest.raises(ah.GroupAborted):
        dist.all_reduce(stuck)
    allhands.torch.recover()
    assert (total(), dist.get_world_size()) == (3, 2)


def test_a_world_is_joined_again_after_its_end_however_that_came(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        store = dist.FileStore(str(tmp_path / "meet"), 2)
        for end in (
            dist.destroy_process_group,
            lambda: dist.group.WORLD.shutdown() or dist.destroy_process_group(),
            lambda: dist.group.WORLD.abort() or dist.destroy_process_group(),
            dist.distributed_c10d._abort_process_group,
        ):
            rejoin(rank, 2, store)
            part = dist.new_group([1, 0])
            assert total() == total(part) == 3
            end()
            assert not dist.is_initialized()
            with pytest.raises(RuntimeError, match=r"left its world|aborted it"):
                part.barrier().wait()
        rejoin(rank, 2, store)
        assert total() == 3
        dist.destroy_process_group()

    run_ranks(2, body, init=False)


def test_a_world_is_joined_again_after_a_failure_by_who_is_left(tmp_path: Path) -> None:
    def body(rank: int) -> float:
        rejoin(rank, 3, dist.FileStore(str(tmp_path / "first"), 3))
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(ah.PeerFailed):
            dist.barrier()
        dist.destroy_process_group()
        rejoin(rank, 2, dist.FileStore(str(tmp_path / "second"), 2))
        found = total()
        dist.destroy_process_group()
        return found

    assert run_ranks(3, body, init=False, dies=(2,)) == [3, 3, None]


@on_ranks(2)
def test_calls_in_flight_end_before_their_group_does(rank: int) -> None:
    part = dist.new_group([0, 1])
    tensors = [torch.full((1 << 16,), rank + 1.0) for _ in range(8)]
    works = [dist.all_reduce(one, group=part, async_op=True) for one in tensors]
    dist.destroy_process_group(part)
    assert all(work.is_completed() for work in works)
    assert all(one.eq(3).all() for one in tensors)
    more = [dist.all_reduce(one, async_op=True) for one in tensors]
    dist.destroy_process_group()
    assert all(work.is_success() for work in more)
    assert all(one.eq(6).all() for one in tensors)


@on_ranks(2)
def test_a_rank_that_leaves_early_is_named_to_those_that_call_on(rank: int) -> None:
    assert total() == 3
    if rank == 1:
        dist.destroy_process_group()
        return
    with pytest.raises(ah.PeerFailed, match=r"rank 1 .* left") as it:
        total()
    assert it.value.failed_ranks == (1,)
