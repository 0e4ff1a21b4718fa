"""Groups of some ranks: made, numbered, and used side by side."""

import asyncio
import inspect
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import allhands as ah
from allhands.api.default_world import require_world
from allhands.testing import on_threads
from support.arrays.collective_cases import ranks_total
from surface.describe import list_parameters


def _is_call(name: str) -> bool:
    """Say whether a public name is a call of the ranks of a group: those can be labelled."""
    found = getattr(ah, name)
    return inspect.isfunction(inspect.unwrap(found)) and {"group", "label"} <= {
        one.name for one in list_parameters(found)
    }


CALLS = [name for name in dir(ah) if _is_call(name)]


# ---------------------------------------------------------------- P53


@on_threads(4)
def test_p053_two_disjoint_groups_reduce_at_the_same_time(rank: int):
    low, high = ah.new_group([0, 1]), ah.new_group([2, 3])
    assert ranks_total(low if rank < 2 else high) == (1 if rank < 2 else 5)


@on_threads(4)
def test_p053_one_group_works_while_another_waits(rank: int):
    low, high = ah.new_group([0, 1]), ah.new_group([2, 3])
    if rank < 2:
        ah.recv(np.empty(1), rank + 2)  # sent once the others have done theirs
        assert ranks_total(low) == 1
    else:
        assert ranks_total(high) == 5
        ah.send(np.ones(1), rank - 2)


# ---------------------------------------------------------------- P55


@pytest.mark.parametrize("name", CALLS)
def test_p055_call_of_a_rank_that_is_not_in_the_group_warns(name: str):
    call = getattr(ah, name)
    parameters = list_parameters(call)
    needed: dict[str, Any] = {one.name: None for one in parameters if one.default is one.empty}

    @on_threads(2)
    def body(rank: int) -> None:
        group = ah.new_group([0])
        if rank == 1:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                given = call(**needed, group=group)
            assert given is None or name == "recv"
            assert len(caught) == 1
            text = str(caught[0].message)
            assert f"{name} does nothing here" in text
            assert "does not belong to" in text
            assert issubclass(caught[0].category, UserWarning)
            assert caught[0].filename == __file__ or name == "send"

    body()


def test_p055_all_calls_have_been_found():
    assert len(CALLS) >= 20
    assert {"all_reduce", "barrier", "monitored_barrier", "irecv", "scan"} <= {*CALLS}


@on_threads(2)
def test_p055_send_and_recv_of_a_rank_that_is_not_in_the_group_warn(rank: int):
    group = ah.new_group([0])
    if rank == 1:
        with pytest.warns(UserWarning, match="send does nothing here.*does not belong to"):
            ah.send(np.ones(1), 0, group)
        with pytest.warns(UserWarning, match="recv does nothing here.*does not belong to"):
            assert ah.recv(np.ones(1), 0, group) == -1
        assert (ah.get_rank(group), ah.get_world_size(group)) == (-1, -1)
        assert ah.get_sequence_number(group) == -1


# ---------------------------------------------------------------- P56


@on_threads(3)
def test_p056_ranks_of_a_group_and_of_the_world():
    group = ah.new_group([2, 1])
    assert [ah.get_group_rank(group, rank) for rank in (2, 1)] == [0, 1]
    assert [ah.get_global_rank(group, rank) for rank in (0, 1)] == [2, 1]
    assert ah.get_process_group_ranks(group) == [2, 1]
    assert ah.get_process_group_ranks(None) == [0, 1, 2]
    assert ah.get_global_rank(None, 1) == ah.get_group_rank(None, 1) == 1


@on_threads(2)
def test_p056_rank_that_is_not_part_of_the_group():
    group = ah.new_group([1])
    with pytest.raises(ValueError, match="not part of group"):
        ah.get_group_rank(group, 0)
    for rank in (1, -1):
        with pytest.raises(ValueError, match="not part of group"):
            ah.get_global_rank(group, rank)


@on_threads(2)
def test_p056_group_that_is_not_registered():
    group = ah.new_group()
    ah.destroy_process_group(group)
    for stranger in (group, object()):
        with pytest.raises(ValueError, match="not registered"):
            ah.get_group_rank(stranger, 0)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="not registered"):
            ah.get_global_rank(stranger, 0)  # type: ignore[arg-type]


# ---------------------------------------------------------------- P57


@on_threads(4)
def test_p057_local_synchronization_needs_the_members_alone(rank: int):
    if rank == 3:
        return
    group = ah.new_group([0, 1, 2], use_local_synchronization=True)
    assert ah.get_world_size(group) == 3
    assert ranks_total(group) == 3


@on_threads(4)
def test_p057_each_member_may_name_itself_first(rank: int):
    group = ah.new_group([rank, (rank + 2) % 4], use_local_synchronization=True)
    low = rank % 2
    assert ah.get_process_group_ranks(group) == [low, low + 2]
    rows = np.empty((2, 2), np.int64)
    ah.all_gather_into_tensor(rows, np.array([rank, rank + 2]), group)
    assert rows.tolist() == [[low, low + 2], [low + 2, low + 4]]


@on_threads(3)
def test_p057_groups_of_other_ranks_may_be_made_in_any_order(rank: int):
    pairs = [(0, 1), (1, 2), (0, 2)]
    mine = [pair for pair in pairs if rank in pair]
    if rank == 1:
        mine.reverse()
    groups = {pair: ah.new_group(pair, use_local_synchronization=True) for pair in mine}
    for pair in pairs:
        if rank in pair:
            assert ranks_total(groups[pair]) == sum(pair)


@on_threads(4)
def test_p057_duplicates_are_distinct(rank: int):
    ranks = [rank, (rank + 2) % 4]
    groups = [ah.new_group(ranks, use_local_synchronization=True) for _ in range(2)]
    assert groups[0] is not groups[1]
    assert len({group.name for group in groups}) == 2
    for group in groups:
        assert ranks_total(group) == sum(ranks)
    assert [ah.get_sequence_number(group) for group in groups] == [1, 1]


@on_threads(2)
def test_p057_rank_that_is_not_in_its_own_group_gets_none(rank: int):
    group = ah.new_group([1 - rank], use_local_synchronization=True)
    assert isinstance(group, ah.NonMember)
    assert group.ranks == (1 - rank,)


@on_threads(2)
def test_p057_group_of_wrong_ranks_is_refused():
    for ranks, text in [([], "at least one"), ([0, 0], "each of its ranks once")]:
        with pytest.raises(ValueError, match=text):
            ah.new_group(ranks)
    with pytest.raises(ValueError, match=r"ranks \[2\] are not in the world, which has 2 ranks"):
        ah.new_group([0, 2])
    with pytest.raises(TypeError, match="tag must be a str, not float: a timeout is timeout="):
        ah.new_group([0], 5.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="positive number of seconds"):
        ah.new_group([0], timeout=0)
    assert ranks_total(ah.new_group()) == 1  # nothing has been counted that was refused


def test_p057_rank_that_has_not_made_the_group_is_named():
    over = threading.Event()

    @on_threads(2)
    def body(rank: int) -> None:
        if rank == 0:
            group = ah.new_group([0, 1])
            with pytest.raises(ah.CollectiveTimeout, match="has not made this group") as found:
                ah.all_reduce(np.ones(1), group=group, timeout=0.5)
            assert found.value.missing_ranks == (1,)
            over.set()
        else:
            ah.new_group([1, 0])  # another order, another group
            over.wait()

    body()


# ---------------------------------------------------------------- P58


def _numbers(group: Any, through: Any) -> list[int]:
    """Return every rank's count of calls, gathered on another group."""
    told = np.empty(ah.get_world_size(through), np.int64)
    ah.all_gather_into_tensor(told, np.array([ah.get_sequence_number(group)]), through)
    return told.tolist()


@on_threads(3)
def test_p058_numbers_are_equal_after_init():
    assert _numbers(None, ah.new_group()) == [0, 0, 0]


@on_threads(3)
def test_p058_numbers_of_a_new_group_begin_anew():
    ah.barrier()
    assert _numbers(ah.new_group(), ah.new_group()) == [0, 0, 0]


def _check_counting(group: Any, through: Any) -> None:
    size = ah.get_world_size(group)
    for number in range(1, 4):
        ranks_total(group)
        assert _numbers(group, through) == [number] * size
    here = ah.get_rank(group)
    work = None
    if here not in (0, 2):
        work = ah.all_reduce(np.ones(3), group=group, async_op=True)
    assert _numbers(group, through) == [3 if at in (0, 2) else 4 for at in range(size)]
    if work is None:
        ranks_total(group)
    else:
        work.wait()


@on_threads(4)
def test_p058_each_call_counts_one_and_lagging_ranks_are_seen():
    _check_counting(None, ah.new_group())


@on_threads(3)
def test_p058_process_groups_tell_the_same_numbers():
    part = ah.new_group([0, 2])
    for group in [None] if isinstance(part, ah.NonMember) else [None, part]:
        pg = ah.process_group(group)
        for number in range(1, 11):
            pg.allreduce(np.ones(2)).wait(20)
            assert pg._get_sequence_number_for_group() == number
            assert ah.get_sequence_number(group) == number


@on_threads(4)
def test_p058_each_call_on_a_part_counts_there(rank: int):
    group, through = ah.new_group([1, 2, 3]), ah.new_group([1, 2, 3])
    if rank:
        _check_counting(group, through)
    assert ah.get_sequence_number() == 0


# ---------------------------------------------------------------- P105


@on_threads(2)
def test_p105_each_face_has_the_world_make_its_groups(rank: int):
    plain, own = ah.new_group([1, 0], "both"), ah.new_group([rank])

    async def beside() -> None:
        world = ah.aio.AsyncWorld(require_world())
        assert (await world.new_group([1, 0], "both")).group is plain
        assert (await world.new_group([rank])).group is not own
        assert await world.new_group([1 - rank], timeout=3) is None
        whole = await world.new_group(use_local_synchronization=True, timeout=3)
        assert whole.group.timeout == 3
        assert (await whole.all_reduce(np.ones(1)))[0] == 2

    asyncio.run(beside())
