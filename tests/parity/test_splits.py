"""Groups cut into parts: by color, by size, by listing, by leaving ranks out."""

import pytest

import allhands as ah
from allhands.testing import on_threads
from support.arrays.collective_cases import ranks_total


@on_threads(5)
def test_p112_split_by_color_and_key(rank: int):
    group = ah.split_group(color=rank % 2, key=-rank)
    assert ah.get_process_group_ranks(group) == ([4, 2, 0] if rank % 2 == 0 else [3, 1])
    assert ranks_total(group) == (6 if rank % 2 == 0 else 4)


@on_threads(4)
def test_p112_equal_keys_keep_the_order_of_the_group(rank: int):
    backwards = ah.new_group([3, 2, 1, 0])
    group = ah.split_group(color=rank // 2, group=backwards)
    assert ah.get_process_group_ranks(group) == ([1, 0] if rank < 2 else [3, 2])
    assert ranks_total(group) == (1 if rank < 2 else 5)


@on_threads(4)
def test_p112_rank_without_a_color_is_in_no_group(rank: int):
    group = ah.split_group([None, -1, 7, 7][rank])
    assert isinstance(group, ah.NonMember) == (rank < 2)
    if rank >= 2:
        assert ranks_total(group) == 5


@on_threads(6)
def test_p112_parts_are_split_again(rank: int):
    half = ah.split_group(rank // 3)
    part = ah.split_group(ah.get_rank(half) % 2, group=half)
    last = ah.split_group(0, key=-rank, group=part)
    assert ranks_total(last) == {0: 2, 1: 1, 2: 2, 3: 8, 4: 4, 5: 8}[rank]


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
    assert ranks_total(group) == 5
    with pytest.raises(ValueError, match="ranks_to_exclude"):
        ah.shrink_group([1], group)
    with pytest.raises(ValueError, match="ranks_to_exclude"):
        ah.shrink_group([])
    if rank != 3:
        assert ranks_total(ah.shrink_group([3], group)) == 2


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
        assert ranks_total(mine) == {0: 3, 1: 1, 3: 3}[rank]
    with pytest.raises(ValueError, match="rank 1 is in subgroups 0 and 1"):
        ah.new_subgroups_by_enumeration([[0, 1], [1, 2]])
    with pytest.raises(ValueError, match="cannot be empty"):
        ah.new_subgroups_by_enumeration([])
