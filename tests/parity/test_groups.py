"""Groups of some ranks: made, found, named, and used beside each other."""

import asyncio
import inspect
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import allhands as ah
from allhands.api.sync import current_world
from allhands.testing import on_threads


def _is_call(name: str) -> bool:
    """Say whether a public name is a call of the ranks of a group: those can be labelled."""
    found = getattr(ah, name)
    return inspect.isfunction(found) and {"group", "label"} <= {
        *inspect.signature(found).parameters
    }


CALLS = [name for name in dir(ah) if _is_call(name)]


def _total(group: Any) -> float:
    """Return the sum of the ranks of the world that are in a group, as they say it."""
    x = np.full(3, float(ah.get_rank()))
    ah.all_reduce(x, group=group)
    assert (x == x[0]).all()
    return float(x[0])


def _call_twice(group: Any) -> None:
    for _ in range(2):
        ah.all_reduce(np.ones(1), group=group)


# ---------------------------------------------------------------- P48


@on_threads(3)
def test_p048_round_robin_deals_calls_to_each_group(rank: int):
    groups = [ah.new_group() for _ in range(2)]
    dealt = ah.round_robin(groups)
    for _ in range(3):
        x = np.full((100, 100), float(rank))
        ah.broadcast(x, 0, group=dealt)
        assert (x == 0).all()
    assert [group.sequence for group in groups] == [2, 1]
    assert ah.get_sequence_number(dealt) == 3
    assert (dealt.rank, dealt.size) == (rank, 3)


@on_threads(2)
def test_p048_round_robin_is_created_and_destroyed_again_and_again():
    for _ in range(3):
        groups = [ah.new_group() for _ in range(2)]
        dealt = ah.round_robin(groups)
        for _ in range(3):
            x = np.ones((10, 10))
            dealt.all_reduce(x).wait()
            assert (x == 2).all()
        ah.destroy_process_group(dealt)
        with pytest.raises(ah.AllhandsError, match="destroyed"):
            ah.all_reduce(np.ones(1), group=groups[1])


@on_threads(2)
def test_p048_round_robin_lets_a_call_pass_one_that_waits(rank: int):
    dealt = ah.round_robin([ah.new_group(), ah.new_group()])
    first, second = np.ones(1), np.ones(2)
    works = []
    if rank == 0:
        works = [dealt.all_reduce(first), dealt.all_reduce(second)]
        works[1].wait()  # rank 1 makes the first only after it has heard of this
        assert not works[0].is_completed()
        ah.send(np.ones(1), 1)
        works[0].wait()
    else:
        one, other = dealt.parts
        other.all_reduce(second).wait()
        ah.recv(np.ones(1), 0)
        one.all_reduce(first).wait()
    assert (first == 2).all()
    assert (second == 2).all()


@on_threads(2)
def test_p048_barrier_of_a_round_robin_waits_for_calls_on_every_group(rank: int):
    dealt = ah.round_robin([ah.new_group(), ah.new_group()])
    one, other = dealt.parts
    x = np.ones(5)
    if rank == 0:
        other.all_reduce(x)
        barrier = dealt.barrier()
        one.all_reduce(np.ones(1)).wait()  # it comes after the barrier of this group
        assert not barrier.is_completed()
        ah.send(np.ones(1), 1)
        barrier.wait()
        assert (x == 2).all()
    else:
        one.barrier().wait()
        one.all_reduce(np.ones(1)).wait()
        ah.recv(np.empty(1), 0)
        other.all_reduce(x).wait()
        other.barrier().wait()


@on_threads(2)
def test_p048_messages_on_a_round_robin_keep_their_order(rank: int):
    dealt = ah.round_robin([ah.new_group() for _ in range(2)])
    if rank == 0:
        dealt.all_reduce(np.ones(1))  # takes a turn here before the messages, there after them
    for number in range(4):
        x = np.full(1, number if rank == 0 else -1)
        if rank == 0:
            ah.send(x, 1, dealt)
        else:
            assert ah.recv(x, 0, dealt) == 0
            assert x[0] == number
    if rank == 1:
        dealt.all_reduce(np.ones(1))
    ah.barrier(dealt)


@on_threads(2)
def test_p048_abort_of_a_round_robin_ends_all_its_groups(rank: int):
    dealt = ah.round_robin([ah.new_group() for _ in range(2)])
    if rank == 0:
        works = [dealt.all_reduce(np.ones(1)) for _ in range(2)]
        ah.recv(np.empty(1), 1)  # it has heard of the calls
        ah.abort("enough", dealt)
        for work in works:
            with pytest.raises(ah.GroupAborted, match="enough"):
                work.wait()
        ah.send(np.ones(1), 1)
    else:
        ah.send(np.ones(1), 0)
        with pytest.raises(ah.GroupAborted, match="enough"):
            ah.recv(np.empty(1), 0, dealt)  # never sent
        ah.recv(np.empty(1), 0)
        with pytest.raises(ah.GroupAborted, match="enough"):
            _call_twice(dealt.parts[1])  # the first may find the other's contribution
    ah.barrier()


@on_threads(2)
def test_p048_round_robin_has_every_kind_of_call(rank: int):
    parts = [ah.new_group() for _ in range(2)]
    dealt = ah.round_robin(parts)
    arrays = [np.full(3, float(at)) for at in range(4)]
    with ah.coalescing(dealt):
        for x in arrays:
            ah.all_reduce(x, group=dealt)
    assert [x.tolist() for x in arrays] == [[2.0 * at] * 3 for at in range(4)]
    told: list[object] = [None, None]
    ah.all_gather_object(told, {"rank": rank}, dealt)
    assert told == [{"rank": 0}, {"rank": 1}]
    ah.monitored_barrier(dealt)
    call = ah.all_reduce_init(arrays[1], group=dealt)
    assert call is not None
    call.start()
    call.wait()
    assert arrays[1].tolist() == [4] * 3
    assert all(part.sequence for part in parts)
    ah.set_timeout(0.2, dealt)
    if rank == 0:
        with pytest.raises(ah.CollectiveTimeout, match=r"after 0\.2 s"):  # not after the parts' own
            ah.all_reduce(arrays[0], group=dealt)
        ah.send(np.ones(1), 1)
    else:
        ah.recv(np.empty(1), 0)


@on_threads(2)
def test_p048_round_robin_refuses_groups_of_other_ranks(rank: int):
    pair, mine = ah.new_group(), ah.new_group([rank])
    with pytest.raises(ValueError, match="same ranks"):
        ah.round_robin([pair, mine])
    with pytest.raises(ValueError, match="each of them once"):
        ah.round_robin([pair, pair])
    with pytest.raises(ValueError, match="each of them once"):
        ah.round_robin([])
    with pytest.raises(ValueError, match="go on by themselves"):
        ah.round_robin([ah.new_group(retryable=True)])
    with pytest.raises(TypeError, match="new_group"):
        ah.round_robin([None])  # type: ignore[list-item]
    dealt = ah.round_robin([pair])
    with pytest.raises(ValueError, match="positive number of seconds"):
        ah.all_reduce(np.ones(1), group=dealt, timeout=-1 if rank else 0)
    assert ah.get_sequence_number(dealt) == 0  # no turn was taken


# ---------------------------------------------------------------- P53


@on_threads(4)
def test_p053_two_disjoint_groups_reduce_at_the_same_time(rank: int):
    low, high = ah.new_group([0, 1]), ah.new_group([2, 3])
    assert _total(low if rank < 2 else high) == (1 if rank < 2 else 5)


@on_threads(4)
def test_p053_one_group_works_while_another_waits(rank: int):
    low, high = ah.new_group([0, 1]), ah.new_group([2, 3])
    if rank < 2:
        ah.recv(np.empty(1), rank + 2)  # sent once the others have done theirs
        assert _total(low) == 1
    else:
        assert _total(high) == 5
        ah.send(np.ones(1), rank - 2)


# ---------------------------------------------------------------- P55


@pytest.mark.parametrize("name", CALLS)
def test_p055_call_of_a_rank_that_is_not_in_the_group_warns(name: str):
    call = getattr(ah, name)
    parameters = inspect.signature(call).parameters.values()
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
    assert _total(group) == 3


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
            assert _total(groups[pair]) == sum(pair)


@on_threads(4)
def test_p057_duplicates_are_distinct(rank: int):
    ranks = [rank, (rank + 2) % 4]
    groups = [ah.new_group(ranks, use_local_synchronization=True) for _ in range(2)]
    assert groups[0] is not groups[1]
    assert len({group.name for group in groups}) == 2
    for group in groups:
        assert _total(group) == sum(ranks)
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
    assert _total(ah.new_group()) == 1  # nothing has been counted that was refused


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
    """Return what every rank says of its number of calls, told on another group."""
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
        _total(group)
        assert _numbers(group, through) == [number] * size
    here = ah.get_rank(group)
    work = None
    if here not in (0, 2):
        work = ah.all_reduce(np.ones(3), group=group, async_op=True)
    assert _numbers(group, through) == [3 if at in (0, 2) else 4 for at in range(size)]
    if work is None:
        _total(group)
    else:
        work.wait()


@on_threads(4)
def test_p058_each_call_counts_one_and_lagging_ranks_are_seen():
    _check_counting(None, ah.new_group())


@on_threads(4)
def test_p058_each_call_on_a_part_counts_there(rank: int):
    group, through = ah.new_group([1, 2, 3]), ah.new_group([1, 2, 3])
    if rank:
        _check_counting(group, through)
    assert ah.get_sequence_number() == 0


# ---------------------------------------------------------------- P60


@on_threads(4)
def test_p060_same_tag_and_ranks_are_the_same_group():
    mine, _ = ah.new_subgroups(2, tag="blu")
    again, _ = ah.new_subgroups(2, tag="blu")
    assert again is mine
    assert ah.new_subgroups(2, tag="blu2")[0] is not mine


@on_threads(4)
def test_p060_without_a_tag_it_is_a_new_group_each_time(rank: int):
    tagged, _ = ah.new_subgroups(2, tag="blu")
    groups = [tagged, ah.new_subgroups(2)[0], ah.new_subgroups(2, tag="")[0]]
    assert len({id(group) for group in groups}) == 3
    for group in groups:
        assert _total(group) == (1 if rank < 2 else 5)


@on_threads(2)
def test_p060_other_ranks_or_another_order_are_another_group():
    groups = [ah.new_group([0, 1], "x"), ah.new_group([1, 0], "x"), ah.new_group([0, 1], "y")]
    assert len({id(group) for group in groups}) == 3
    assert ah.new_group([1, 0], "x", use_local_synchronization=True) is groups[0]


@on_threads(2)
def test_p060_threads_that_ask_at_the_same_time_get_the_same_group():
    world = current_world()
    begin = threading.Barrier(4)
    found: list[object] = []

    def ask() -> None:
        begin.wait()
        found.append(world.new_group([0, 1], "shared"))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert _total(found[0]) == 1


@on_threads(2)
def test_p060_destroyed_group_gives_its_tag_back():
    first = ah.new_group(tag="x")
    ah.destroy_process_group(first)
    assert ah.find_group("x", [0, 1]) is None
    second = ah.new_group(tag="x")
    assert second is not first
    assert second.name != first.name
    assert _total(second) == 1


@on_threads(2)
def test_p060_tag_that_would_garble_a_terminal_is_refused():
    for tag in ("a\nb", "x" * 65):
        with pytest.raises(ValueError, match="printable"):
            ah.new_group(tag=tag)


# ---------------------------------------------------------------- P61


@on_threads(4)
def test_p061_group_is_found_by_its_own_tag_and_ranks():
    groups = [ah.new_subgroups(2, tag=tag)[0] for tag in ("blu", "blu2", None, None)]
    for group in groups:
        assert ah.find_group(ah.get_group_tag(group), ah.get_process_group_ranks(group)) is group
        assert ah.get_group(group.name) is group


@on_threads(4)
def test_p061_group_is_found_by_another_tag():
    blu, _ = ah.new_subgroups(2, tag="blu")
    bla, _ = ah.new_subgroups(2, tag="bla")
    none, _ = ah.new_subgroups(2)
    for group in (bla, none):
        tag, ranks, _ = ah.functional.expand_group(group, "blu")
        assert ah.find_group(tag, ranks) is blu
    tag, ranks, _ = ah.functional.expand_group(blu, "")  # a tag cannot be taken away
    assert ah.find_group(tag, ranks) is blu
    assert ah.find_group("blu", [0, 1, 2, 3]) is None
    assert ah.find_group("blue", ranks) is None


@on_threads(4)
def test_p061_part_of_a_part_is_found_by_its_ranks_in_the_world(rank: int):
    backwards = ah.new_group([3, 2, 1, 0])
    made, _ = ah.new_subgroups(2, backwards, tag="blu")
    assert ah.find_group("blu", [1, 0] if rank < 2 else [3, 2]) is made


@on_threads(4)
def test_p061_group_is_found_or_created():
    made = ah.find_or_create_group("blu", [0, 1, 2, 3], 2)
    assert ah.new_subgroups(2, tag="blu")[0] is made
    assert ah.find_or_create_group("blu", [0, 1, 2, 3], 2) is made
    whole = ah.find_or_create_group("blu", [0, 1, 2, 3])
    assert whole is not made
    assert _total(whole) == 6


@on_threads(3)
def test_p061_group_that_cannot_be_created_is_refused(rank: int):
    others = [one for one in range(3) if one != rank]
    with pytest.raises(ValueError, match="is not among the ranks"):
        ah.find_or_create_group("x", others)
    with pytest.raises(ValueError, match="without a tag"):
        ah.find_or_create_group("", [rank])
    with pytest.raises(ValueError, match="cannot be taken 2 at a time"):
        ah.find_or_create_group("x", [0, 1, 2], 2)
    with pytest.raises(ValueError, match="is registered here"):
        ah.get_group("nobody")


@on_threads(4)
def test_p061_world_is_found_by_its_ranks():
    assert ah.find_group("", [0, 1, 2, 3]) is ah.default_group()
    assert ah.find_or_create_group("", [0, 1, 2, 3]) is ah.default_group()
    assert ah.get_group("world") is ah.default_group()
    assert ah.get_group_tag() == ""
    assert ah.find_group("", [0, 1]) is None


# ---------------------------------------------------------------- P105


@on_threads(2)
def test_p105_each_face_has_the_world_make_its_groups(rank: int):
    plain, own = ah.new_group([1, 0], "both"), ah.new_group([rank])

    async def beside() -> None:
        world = ah.aio.AsyncWorld(current_world())
        assert (await world.new_group([1, 0], "both")).group is plain
        assert (await world.new_group([rank])).group is not own
        assert await world.new_group([1 - rank], timeout=3) is None
        whole = await world.new_group(use_local_synchronization=True, timeout=3)
        assert whole.group.timeout == 3
        assert (await whole.all_reduce(np.ones(1)))[0] == 2

    asyncio.run(beside())


# ---------------------------------------------------------------- P112


@on_threads(5)
def test_p112_split_by_color_and_key(rank: int):
    group = ah.split_group(color=rank % 2, key=-rank)
    assert ah.get_process_group_ranks(group) == ([4, 2, 0] if rank % 2 == 0 else [3, 1])
    assert _total(group) == (6 if rank % 2 == 0 else 4)


@on_threads(4)
def test_p112_equal_keys_keep_the_order_of_the_group(rank: int):
    backwards = ah.new_group([3, 2, 1, 0])
    group = ah.split_group(color=rank // 2, group=backwards)
    assert ah.get_process_group_ranks(group) == ([1, 0] if rank < 2 else [3, 2])
    assert _total(group) == (1 if rank < 2 else 5)


@on_threads(4)
def test_p112_rank_without_a_color_is_in_no_group(rank: int):
    group = ah.split_group([None, -1, 7, 7][rank])
    assert isinstance(group, ah.NonMember) == (rank < 2)
    if rank >= 2:
        assert _total(group) == 5


@on_threads(6)
def test_p112_parts_are_split_again(rank: int):
    half = ah.split_group(rank // 3)
    part = ah.split_group(ah.get_rank(half) % 2, group=half)
    last = ah.split_group(0, key=-rank, group=part)
    assert _total(last) == {0: 2, 1: 1, 2: 2, 3: 8, 4: 4, 5: 8}[rank]


@on_threads(2)
def test_p112_split_refuses_what_is_no_color():
    for color in ("red", 1.5, 1 << 63):
        with pytest.raises(TypeError, match="color must be a whole number"):
            ah.split_group(color)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="key must be a whole number"):
        ah.split_group(0, "first")  # type: ignore[arg-type]
    assert ah.get_sequence_number() == 0


@on_threads(4)
def test_p112_shrunk_group_has_all_but_the_excluded(rank: int):
    if rank == 1:
        return  # the excluded need not call
    group = ah.shrink_group([1])
    assert ah.get_process_group_ranks(group) == [0, 2, 3]
    assert _total(group) == 5
    with pytest.raises(ValueError, match="ranks_to_exclude"):
        ah.shrink_group([1], group)
    with pytest.raises(ValueError, match="ranks_to_exclude"):
        ah.shrink_group([])
    if rank != 3:
        assert _total(ah.shrink_group([3], group)) == 2


@on_threads(4)
def test_p112_subgroups_follow_each_other(rank: int):
    mine, every = ah.new_subgroups(2)
    assert every[rank // 2] is mine
    assert [ah.get_process_group_ranks(one) for one in every] == [[0, 1], [2, 3]]
    backwards = ah.new_group([3, 2, 1, 0])
    mine, _ = ah.new_subgroups(2, backwards)
    assert ah.get_process_group_ranks(mine) == ([1, 0] if rank < 2 else [3, 2])
    for size in (3, 5, 0):
        with pytest.raises(ValueError, match="group_size"):
            ah.new_subgroups(size)


@on_threads(4)
def test_p112_subgroups_are_listed(rank: int):
    mine, every = ah.new_subgroups_by_enumeration([[0, 3], [1]])
    assert [ah.get_process_group_ranks(one) for one in every] == [[0, 3], [1]]
    assert isinstance(mine, ah.NonMember) == (rank == 2)
    if rank != 2:
        assert _total(mine) == {0: 3, 1: 1, 3: 3}[rank]
    with pytest.raises(ValueError, match="rank 1 is in subgroups 0 and 1"):
        ah.new_subgroups_by_enumeration([[0, 1], [1, 2]])
    with pytest.raises(ValueError, match="cannot be empty"):
        ah.new_subgroups_by_enumeration([])
