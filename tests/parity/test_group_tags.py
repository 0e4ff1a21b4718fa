"""Groups by tag and ranks: the same group each time, and found again."""

import threading

import pytest

import allhands as ah
from allhands.api.default_world import require_world
from allhands.testing import on_threads
from support.arrays.collective_cases import ranks_total

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
        assert ranks_total(group) == (1 if rank < 2 else 5)


@on_threads(2)
def test_p060_other_ranks_or_another_order_are_another_group():
    groups = [ah.new_group([0, 1], "x"), ah.new_group([1, 0], "x"), ah.new_group([0, 1], "y")]
    assert len({id(group) for group in groups}) == 3
    assert ah.new_group([1, 0], "x", use_local_synchronization=True) is groups[0]


@on_threads(2)
def test_p060_threads_that_ask_at_the_same_time_get_the_same_group():
    world = require_world()
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
    assert ranks_total(found[0]) == 1


@on_threads(2)
def test_p060_destroyed_group_gives_its_tag_back():
    first = ah.new_group(tag="x")
    ah.destroy_process_group(first)
    assert ah.find_group("x", [0, 1]) is None
    second = ah.new_group(tag="x")
    assert second is not first
    assert second.name != first.name
    assert ranks_total(second) == 1


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
    assert ranks_total(whole) == 6


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
