"""Groups beside the default group: concurrent, from several threads, in turn, and ended."""

import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import allhands.torch
from support.torch.ranks import on_ranks, run_ranks
from support.torch.reduction_cases import equal

SIZE = 4


@on_ranks(2)
def test_p004_the_default_timeout_of_a_group_is_read_and_set() -> None:
    pg = dist.new_group(timeout=timedelta(seconds=50))
    backend = pg._get_backend(torch.device("cpu"))
    assert backend.options._timeout == timedelta(seconds=50)
    backend._set_default_timeout(timedelta(seconds=23))
    assert backend.options._timeout == timedelta(seconds=23)
    dist.all_reduce(torch.zeros(1), group=pg)
    assert dist.group.WORLD.options._timeout == timedelta(seconds=30)


@on_ranks(SIZE)
def test_p053_two_groups_without_a_common_rank_reduce_at_the_same_time(rank: int) -> None:
    low, high = dist.new_group([0, 1]), dist.new_group([2, 3])
    x = torch.full((3, 3), float(rank))
    dist.all_reduce(x, group=low if rank < 2 else high)
    equal(x, torch.full((3, 3), 1.0 if rank < 2 else 5.0))
    x = torch.full((2,), float(rank))
    dist.broadcast(x, src=1 if rank < 2 else 3, group=low if rank < 2 else high)
    equal(x, torch.full((2,), 1.0 if rank < 2 else 3.0))


@on_ranks(2)
def test_p054_a_group_is_used_from_another_thread(rank: int) -> None:
    found: list[Any] = []

    def use(pg: Any) -> None:
        x = torch.full((4,), rank + 1.0, requires_grad=True)
        dist.all_reduce(x, group=pg)
        found.append(x)

    thread = threading.Thread(target=use, args=(dist.group.WORLD,))
    thread.start()
    thread.join(20)
    assert found[0].tolist() == [3.0] * 4
    assert found[0].is_leaf


@on_ranks(2)
def test_p048_groups_that_take_turns(rank: int) -> None:
    """Made and destroyed again and again."""
    for _ in range(2):
        parts = [dist.new_group() for _ in range(2)]
        pg = allhands.torch.round_robin(parts)
        for root in (0, 1, 0):
            x = torch.full((100, 100), float(rank))
            pg.broadcast(x, root=root).wait()
            equal(x, torch.full((100, 100), float(root)))
        for _ in range(3):
            x = torch.ones(10, 10)
            dist.all_reduce(x, group=pg)
            equal(x, torch.full((10, 10), 2.0))
        assert sum(part._get_sequence_number_for_group() for part in parts) == 6
        assert {part._get_sequence_number_for_group() for part in parts} == {3}
        pg.barrier().wait()
        assert pg.size() == 2
        for part in parts:
            dist.destroy_process_group(part)
        with pytest.raises(RuntimeError, match="the group was destroyed"):
            pg.allreduce(torch.ones(1)).wait()


@on_ranks(2)
def test_p048_groups_that_cannot_take_turns_are_refused(rank: int) -> None:
    whole, alone = dist.new_group(), dist.new_group([0])
    other = dist.new_group(backend="gloo")
    with pytest.raises(ValueError, match="needs groups, each of them once"):
        allhands.torch.round_robin([])
    with pytest.raises(ValueError, match="each of them once"):
        allhands.torch.round_robin([whole, whole])
    with pytest.raises(ValueError, match="must have the same ranks"):
        allhands.torch.round_robin([whole, alone])
    with pytest.raises(TypeError, match="groups of the backend allhands, not "):
        allhands.torch.round_robin([other])
    if rank == 1:
        assert allhands.torch.round_robin([alone]) is dist.GroupMember.NON_GROUP_MEMBER
    dist.barrier()


@on_ranks(3)
def test_p050_broadcast_coalesced_of_mixed_dtypes_from_each_root(rank: int) -> None:
    for root in range(3):
        dtypes = (torch.float32, torch.float16, torch.int64, torch.float32)
        shapes = ((60,), (50, 2), (25,), (2, 2))
        xs = [
            torch.full(shape, rank + at, dtype=dtype)
            for at, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
        ]
        dist._broadcast_coalesced(dist.group.WORLD, xs, 256, root)
        for at, x in enumerate(xs):
            equal(x, torch.full_like(x, root + at))


@on_ranks(2)
def test_p103_destroying_a_group_ends_it_and_its_calls_alone(rank: int) -> None:
    pg = dist.new_group()
    x = torch.ones(2)
    dist.all_reduce(x, group=pg)
    dist.destroy_process_group(pg)
    with pytest.raises(ValueError, match="Invalid process group specified"):
        dist.destroy_process_group(pg)
    with pytest.raises(RuntimeError):
        pg.allreduce([x]).wait()
    dist.all_reduce(x)
    assert x.tolist() == [4.0, 4.0]


@on_ranks(2)
def test_p103_aborting_a_group_releases_who_waits_in_it(rank: int) -> None:
    pg = dist.new_group()
    if rank == 0:
        work = dist.all_reduce(torch.ones(1), group=pg, async_op=True)
        with pytest.raises(RuntimeError, match="abort"):
            work.wait()
    else:
        dist.distributed_c10d._abort_process_group(pg)
    dist.barrier()


def test_p103_groups_end_their_backends() -> None:
    """PyTorch calls `shutdown` of every destroyed group, the default group last."""

    def body(rank: int) -> list[str]:
        ended: list[str] = []
        pg = dist.new_group(group_desc="one of two")
        for one in (dist.group.WORLD, pg):

            def shutdown(one: Any = one, do: Any = one.shutdown) -> None:
                do()
                ended.append(one.group_desc)

            one.shutdown = shutdown
        dist.destroy_process_group()
        assert not dist.is_initialized()
        return ended

    assert run_ranks(2, body)[0] == ["one of two", "default_pg"]


@on_ranks(2)
def test_p105_a_group_is_made_as_its_options_say(rank: int) -> None:
    """PyTorch's own `new_group` makes the group: PyTorch knows tag and description."""
    pg = dist.new_group([1, 0], group_desc="backwards")
    assert pg.group_desc == "backwards"
    assert pg.group_name == dist.distributed_c10d._get_process_group_name(pg)
    assert dist.get_process_group_ranks(pg) == [0, 1]
    assert (dist.get_rank(pg), dist.get_world_size(pg)) == (rank, 2)
    assert dist.distributed_c10d._resolve_process_group(pg.group_name) is pg
    assert not hasattr(pg, "new_group") or "new_group" not in vars(type(pg))


@pytest.mark.parametrize("backend", ["allhands", "cpu:allhands", "cpu:allhands,cuda:allhands"])
def test_p106_a_group_says_what_it_is(backend: str) -> None:
    def body(rank: int) -> None:
        pg = dist.distributed_c10d._get_default_group()
        assert (pg.rank(), pg.size(), pg.name()) == (rank, 2, "allhands")
        assert pg is dist.group.WORLD
        assert dist.get_backend(pg) == backend
        assert str(pg.group_name) == "0"
        dist.barrier()

    run_ranks(2, body, backend=backend)
