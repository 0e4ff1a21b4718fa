"""Groups cut into parts, and groups without some of the ranks."""

import os
import signal
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

import allhands as ah
import allhands.torch
from support.torch.ranks import on_ranks, run_ranks


def total(group: Any = None) -> float:
    """Return the sum of the default group's ranks within the group."""
    x = torch.full((3,), float(dist.get_rank()))
    dist.all_reduce(x, group=group)
    return float(x[0])


def test_p112_a_shrunk_default_group_is_that_of_the_others() -> None:
    def body(rank: int) -> Any:
        pair = dist.new_group([1, 2])
        if rank == 1:
            return None
        group = allhands.torch.shrink_group([1])
        assert group is dist.group.WORLD
        if rank == 2:
            with pytest.raises(ah.AllhandsError, match=r"shrink_group\(\) has put group"):
                pair.allreduce(torch.ones(1)).wait()
        part = dist.new_group([2, 0])
        return (
            dist.get_rank(),
            dist.get_process_group_ranks(None),
            total() if rank == 2 else total() + total(part),
        )

    assert run_ranks(4, body) == [
        (0, [0, 1, 2], 5.0),
        None,
        (1, [0, 1, 2], 3.0),
        (2, [0, 1, 2], 5.0),
    ]


@on_ranks(4)
def test_p112_a_shrunk_part_keeps_the_ranks_of_the_world(rank: int) -> None:
    part = dist.new_group([1, 2, 3])
    if rank == 1:
        shrunk = allhands.torch.shrink_group([1], part)
        assert dist.get_process_group_ranks(shrunk) == [1, 3]
        assert dist.get_group_rank(shrunk, 3) == 1
        assert total(shrunk) == 4
        with pytest.raises(ValueError, match="is not registered"):
            allhands.torch.shrink_group([1], part)
    elif rank == 3:
        assert total(allhands.torch.shrink_group([1], part)) == 4
    assert total() == 6  # the world is as it was


@on_ranks(2)
def test_p112_what_shrink_group_refuses(rank: int) -> None:
    for wrong in ([], [2], [-1], [0, 0], [0, 1]):
        with pytest.raises(ValueError, match="ranks_to_exclude must name some, not all"):
            allhands.torch.shrink_group(wrong)
    for wrong in (1, "1", [1.0]):  # type: ignore[assignment]
        with pytest.raises(TypeError, match="must be a list of ints"):
            allhands.torch.shrink_group(wrong)
    with pytest.raises(RuntimeError, match="only the others call"):
        allhands.torch.shrink_group([rank])
    with pytest.raises(TypeError, match="groups of backend 'allhands'"):
        allhands.torch.shrink_group([0], dist.new_group(backend="gloo"))
    assert total() == 1


@on_ranks(4)
def test_p112_pytorchs_own_split_group_cuts_groups_without_an_accelerator(rank: int) -> None:
    part = dist.split_group(split_ranks=[[2, 0], [1, 3]], group_desc="halves")
    assert dist.get_process_group_ranks(part) == ([0, 2] if rank % 2 == 0 else [1, 3])
    assert total(part) == (2 if rank % 2 == 0 else 4)
    assert part.group_desc == "halves"
    again = dist.split_group(part, [[1]], timedelta(seconds=7), backend="cpu:allhands")
    assert (again is None) == (rank < 2)
    if again is not None:
        assert dist.get_process_group_ranks(again) == [rank]
        assert again.options._timeout == timedelta(seconds=7)
        assert total(again) == rank
    for error, text, arguments in [
        (ValueError, "at least one part", (None, None)),
        (ValueError, "Backend mismatch", (None, [[0, 1]], None, None, None, "gloo")),
        (ValueError, "takes no pg_options", (None, [[0, 1]], None, object())),
        (ValueError, "names a rank twice", (None, [[0, 0]])),
    ]:
        with pytest.raises(error, match=text):
            dist.split_group(*arguments)
    with pytest.raises(RuntimeError, match="not safe to split"):  # what PyTorch says of Gloo's
        dist.split_group(dist.new_group(backend="gloo"), [[0]])
    assert total() == 6


@on_ranks(4)
def test_p112_pytorchs_own_shrink_group_leaves_ranks_out(rank: int) -> None:
    part = dist.new_group([1, 2, 3])
    for wrong, flags, error in (
        ([], 0, ValueError),
        ((1,), 0, TypeError),
        ([1], 7, ValueError),
        ([4], 0, ValueError),
        ([rank], 0, RuntimeError),
    ):
        with pytest.raises(error):
            dist.shrink_group(wrong, shrink_flags=flags)
    with pytest.raises(TypeError, match="does not support shrinking"):
        dist.shrink_group([1 - rank % 2], dist.new_group(backend="gloo"))
    if rank in (1, 3):
        shrunk = dist.shrink_group([1], part)
        assert dist.get_process_group_ranks(shrunk) == [1, 3]
        assert total(shrunk) == 4
    dist.barrier()
    if rank != 2:
        group = dist.shrink_group([2])
        assert group is dist.group.WORLD
        assert (group.size(), dist.get_rank()) == (3, {0: 0, 1: 1, 3: 2}[rank])
        assert total() == 3


@pytest.mark.parametrize("flags", ["SHRINK_DEFAULT", "SHRINK_ABORT"])
def test_p112_calls_under_way_may_be_ended_by_a_shrink(flags: str) -> None:
    def body(rank: int) -> Any:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        work = dist.all_reduce(torch.ones(1), async_op=True)
        if flags == "SHRINK_DEFAULT":
            with pytest.raises(RuntimeError, match="rank 1"):
                work.wait()
        group = dist.shrink_group([1], shrink_flags=getattr(distributed_c10d, flags))
        if flags == "SHRINK_ABORT":
            with pytest.raises(RuntimeError):
                work.wait()
        assert group.size() == 2
        return total()

    assert run_ranks(3, body, dies=(1,)) == [1.0, None, 1.0]


@on_ranks(4)
def test_p112_each_rank_gets_the_part_that_it_is_in(rank: int) -> None:
    part = allhands.torch.split_group(split_ranks=[[2, 0], [1, 3]], group_desc="halves")
    assert part is not None
    assert dist.get_process_group_ranks(part) == ([2, 0] if rank % 2 == 0 else [1, 3])
    assert dist.get_rank(part) == {0: 1, 1: 0, 2: 0, 3: 1}[rank]
    assert total(part) == (2 if rank % 2 == 0 else 4)
    assert part.group_desc == "halves"
    assert part.group_name in [one.group_name for one in dist.distributed_c10d._world.pg_map]

    again = allhands.torch.split_group(part, [[1], [0]], timedelta(seconds=7))
    assert again is not None
    assert dist.get_process_group_ranks(again) == [rank]
    assert again.options._timeout == timedelta(seconds=7)
    assert total(again) == rank
    dist.destroy_process_group(part)
    with pytest.raises(ValueError, match="is not registered"):
        allhands.torch.split_group(part, [[0]])


@on_ranks(3)
def test_p112_ranks_that_no_part_names_are_in_none(rank: int) -> None:
    part = allhands.torch.split_group(split_ranks=[[0], [2]])
    assert (part is None) == (rank == 1)
    if part is not None:
        assert total(part) == rank


@on_ranks(2)
def test_p112_what_split_group_refuses(rank: int) -> None:
    for wrong, text in [
        (None, "at least one part"),
        ([], "at least one part"),
        ([[0], []], "a part without ranks"),
        ([[0, 2]], r"names \[2\], and ranks .* go from 0 to 1"),
        ([[0], [1, 0]], "names a rank twice"),
    ]:
        with pytest.raises(ValueError, match=text):
            allhands.torch.split_group(split_ranks=wrong)
    with pytest.raises(TypeError, match="groups of backend 'allhands'"):
        allhands.torch.split_group(dist.new_group(backend="gloo"), [[0]])
    assert total() == 1
