"""Budget of the memory that groups take before their calls need it."""

from allhands.shm.areas import PrefaultBudget

MEBIBYTE = 1 << 20


def test_small_groups_take_memory_until_the_process_has_its_share() -> None:
    budget = PrefaultBudget()
    taken = 0
    while budget.take(2, 3 * MEBIBYTE):
        taken += 1
    assert taken == 64 // 3
    budget.give_back(3 * MEBIBYTE)
    assert budget.take(2, 3 * MEBIBYTE)
    assert not budget.take(2, 3 * MEBIBYTE)


def test_a_group_of_many_or_large_areas_takes_none() -> None:
    budget = PrefaultBudget()
    assert budget.take(4, 6 * MEBIBYTE)
    assert not budget.take(5, 6 * MEBIBYTE)
    assert not budget.take(2, 13 * MEBIBYTE)
