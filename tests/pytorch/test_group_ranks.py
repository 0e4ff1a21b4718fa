"""Groups of some ranks through torch.distributed: members, names, rank numbers."""

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import allhands as ah
from support.torch.ranks import BACKEND, on_ranks, run_ranks


def total(group: Any = None) -> float:
    """Return the sum of the default group's ranks within the group."""
    x = torch.full((3,), float(dist.get_rank()))
    dist.all_reduce(x, group=group)
    return float(x[0])


# ---------------------------------------------------------------- P55


def _calls(group: Any) -> dict[str, Callable[[], Any]]:
    """Return calls by name in PyTorch's warnings."""
    x = torch.ones(2)
    return {
        "all_reduce": lambda: dist.all_reduce(x, group=group),
        "all_gather": lambda: dist.all_gather([x, x], x, group=group),
        "all_gather_object": lambda: dist.all_gather_object([None, None], 1, group=group),
        "all_to_all": lambda: dist.all_to_all([x], [x], group=group),
        "barrier": lambda: dist.barrier(group=group),
        "broadcast": lambda: dist.broadcast(x, 0, group=group),
        "broadcast_object_list": lambda: dist.broadcast_object_list([1], 0, group=group),
        "gather": lambda: dist.gather(x, dst=0, group=group),
        "gather_object": lambda: dist.gather_object(1, dst=0, group=group),
        "isend": lambda: dist.isend(x, 0, group=group),
        "irecv": lambda: dist.irecv(x, 0, group=group),
        "monitored_barrier": lambda: dist.monitored_barrier(group=group),
        "reduce": lambda: dist.reduce(x, 0, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter(x, [x], group=group),
        "scatter": lambda: dist.scatter(x, src=0, group=group),
        "scatter_object_list": lambda: dist.scatter_object_list([None], [1], group=group),
    }


def test_p055_a_call_of_a_rank_that_is_not_in_the_group_warns_as_over_gloo() -> None:
    def body(rank: int) -> dict[str, str]:
        group = dist.new_group([0])
        said = {}
        if rank == 1:
            for name, call in _calls(group).items():
                with pytest.warns(UserWarning, match="does not belong to") as caught:
                    assert call() is None
                assert name in str(caught[0].message)
                said[name] = str(caught[0].message)
            assert (dist.get_rank(group), dist.get_world_size(group)) == (-1, -1)
        return said

    ours, its = (run_ranks(2, body, backend=name)[1] for name in (BACKEND, "gloo"))
    assert ours == its
    assert len(ours) == 16


# ---------------------------------------------------------------- P56


@on_ranks(3)
def test_p056_ranks_of_a_group_and_of_the_world() -> None:
    group = dist.new_group([2, 1])
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        assert dist.get_process_group_ranks(group) == [1, 2]  # PyTorch sorts them
        assert [dist.get_group_rank(group, rank) for rank in (1, 2)] == [0, 1]
        assert [dist.get_global_rank(group, rank) for rank in (0, 1)] == [1, 2]
        with pytest.raises(ValueError, match="is not part of group"):
            dist.get_group_rank(group, 0)
        with pytest.raises(ValueError, match="is not part of group"):
            dist.get_global_rank(group, 2)
        assert total(group) == 3
    assert dist.get_process_group_ranks(None) == [0, 1, 2]
    assert dist.get_global_rank(dist.group.WORLD, 1) == 1


@on_ranks(2)
def test_p056_a_group_that_is_over_is_not_registered() -> None:
    group = dist.new_group()
    dist.destroy_process_group(group)
    for ask in (dist.get_group_rank, dist.get_global_rank):
        with pytest.raises(ValueError, match="is not registered"):
            ask(group, 0)
    assert total() == 1


# ---------------------------------------------------------------- P57


@on_ranks(4)
def test_p057_local_synchronization_needs_the_members_alone(rank: int) -> None:
    ranks = [0, 1, 2]
    if rank < 3:
        group = dist.new_group(ranks, use_local_synchronization=True)
        assert total(group) == 3
    assert dist.new_group([3 - rank], use_local_synchronization=True) is None


@on_ranks(3)
def test_p057_groups_of_other_ranks_may_be_made_in_any_order(rank: int) -> None:
    pairs = [(0, 1), (1, 2), (0, 2)]
    mine = [pair for pair in pairs if rank in pair]
    if rank == 1:
        mine.reverse()
    groups = {pair: dist.new_group(list(pair), use_local_synchronization=True) for pair in mine}
    for pair in pairs:
        if rank in pair:
            assert total(groups[pair]) == sum(pair)


@on_ranks(2)
def test_p057_duplicates_are_distinct() -> None:
    groups = [dist.new_group([0, 1], use_local_synchronization=True) for _ in range(2)]
    assert groups[0] is not groups[1]
    assert len({group.group_name for group in groups}) == 2
    assert len({group.group.name for group in groups}) == 2
    assert [total(group) for group in groups] == [1, 1]
    assert [group._get_sequence_number_for_group() for group in groups] == [1, 1]


def test_p057_a_rank_that_has_not_made_the_group_is_named() -> None:
    def body(rank: int) -> None:
        store = dist.distributed_c10d._get_default_store()
        if rank == 0:
            group = dist.new_group([0, 1], timeout=timedelta(seconds=0.5))
            with pytest.raises(ah.CollectiveTimeout, match="has not made this group") as it:
                dist.all_reduce(torch.ones(1), group=group)
            assert it.value.missing_ranks == (1,)
            store.set("told", "")
        else:
            store.wait(["told"])
        assert total() == 1

    run_ranks(2, body)


# ---------------------------------------------------------------- P58


def _number(group: Any) -> int:
    return int(group._get_sequence_number_for_group())


def _numbers(group: Any, through: Any) -> list[int]:
    """Return every rank's count of calls, gathered on another group."""
    told = [torch.zeros((), dtype=torch.int64) for _ in range(dist.get_world_size(through))]
    dist.all_gather(told, torch.tensor(_number(group)), group=through)
    return [int(one) for one in told]


def test_p058_numbers_grow_by_one_with_each_call_as_over_gloo() -> None:
    def body(rank: int) -> list[int]:
        world, part = dist.group.WORLD, dist.new_group([1, 0])
        x = [torch.ones(2), torch.ones(2)]
        found = [_number(world), _number(part)]
        for call in (
            lambda: dist.all_reduce(x[0]),
            lambda: dist.broadcast(x[0], 0),
            lambda: dist.all_gather(x, x[0]),
            lambda: dist.reduce(x[0], 1),
        ):
            before = _number(world)
            call()
            found.append(_number(world) - before)
        return [*found, _number(part)]

    ours, its = (run_ranks(2, body, backend=name) for name in (BACKEND, "gloo"))
    assert ours == its == [[0, 0, 1, 1, 1, 1, 0]] * 2


@on_ranks(3)
def test_p058_ranks_that_lag_are_seen_by_their_numbers(rank: int) -> None:
    group, through = dist.group.WORLD, dist.new_group()
    for number in range(1, 4):
        total()
        assert _numbers(group, through) == [number] * 3
    work = dist.all_reduce(torch.ones(3), async_op=True) if rank == 1 else None
    assert _numbers(group, through) == [3, 4, 3]
    if work is None:
        total()
    else:
        work.wait()
    assert _numbers(group, through) == [4, 4, 4]


@pytest.mark.parametrize("backend", [BACKEND, "gloo"])
@pytest.mark.parametrize("through", [BACKEND, "gloo"])
def test_p058_numbers_of_a_part_grow_as_over_gloo(backend: str, through: str) -> None:
    ranks = [0, 1, 2]

    def body(rank: int) -> None:
        part = dist.new_group(ranks)
        told = dist.new_group(ranks, backend=through)  # whose own calls do not count there
        for number in range(11):
            if rank in ranks:
                assert _numbers(part, told) == [number] * 3
            if number < 10:
                dist.all_reduce(torch.ones(1), group=part) if rank in ranks else None
        if rank in ranks:
            x = torch.ones(1)
            work = dist.all_reduce(x, group=part, async_op=True) if rank == 1 else None
            assert _numbers(part, told) == [10, 11, 10]
            if work is None:
                dist.all_reduce(x, group=part)
            else:
                work.wait()
        dist.barrier()

    run_ranks(4, body, backend=backend)


# ---------------------------------------------------------------- timeouts


@on_ranks(2, timeout=25.0)
def test_a_group_has_its_own_timeout_which_may_be_changed(rank: int) -> None:
    world = dist.group.WORLD
    assert world.options._timeout == timedelta(seconds=25)
    assert dist.new_group([0, 1]).options._timeout == timedelta(minutes=30)  # as PyTorch has it
    group = dist.new_group([0, 1], timeout=timedelta(seconds=0.4))
    assert group.options._timeout == timedelta(seconds=0.4)
    if rank == 0:
        with pytest.raises(ah.CollectiveTimeout) as it:
            dist.all_reduce(torch.ones(1), group=group)
        assert it.value.missing_ranks == (1,)
        assert " Timed out " in str(it.value)
    group.set_timeout(timedelta(seconds=20))
    dist.barrier()
    if rank == 1:
        with contextlib.suppress(ah.AllhandsError):  # rank 0 has given this one up
            dist.all_reduce(torch.ones(1), group=group)
    assert group.options._timeout == timedelta(seconds=20)
    assert total(group) == 1
