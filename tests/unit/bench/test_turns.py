"""The benchmark's pure part: interleaving, call counts, statistics."""

import itertools

from allhands.bench import interleaving
from allhands.bench.case import BenchCase
from allhands.bench.interleaving import Summary, Trial


def test_every_contender_comes_first_and_after_every_place_equally_often() -> None:
    rounds = list(itertools.islice(interleaving.rotate(["a", "b", "c"]), 6))
    assert rounds[:3] == [("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b")]
    assert rounds[3:] == rounds[:3]
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)


def test_without_contenders_there_are_no_rounds() -> None:
    assert list(interleaving.rotate([])) == []


SMALL = BenchCase("all_reduce", 2, 8)
LARGE = BenchCase("all_reduce", 2, 1 << 20)


def test_the_first_turn_has_one_call_and_one_to_warm_up() -> None:
    for cell in (SMALL, LARGE):
        assert Trial.plan(cell, float("inf"), 1.0) == Trial(warm=1, batches=1, calls=1)


def test_a_turn_on_a_small_array_has_batches_of_a_millisecond() -> None:
    assert Trial.plan(SMALL, 1e-4, 0.2) == Trial(warm=100, batches=20, calls=10)


def test_ten_calls_that_take_longer_are_in_a_batch_as_far_as_they_fit() -> None:
    assert Trial.plan(SMALL, 4e-3, 0.2) == Trial(warm=2, batches=1, calls=10)
    assert Trial.plan(SMALL, 0.05, 0.2) == Trial(warm=1, batches=1, calls=4)
    assert Trial.plan(SMALL, 1.0, 0.2) == Trial(warm=1, batches=1, calls=1)


def test_a_turn_on_a_rewritten_array_has_as_many_calls_as_fit() -> None:
    assert Trial.plan(LARGE, 2e-3, 0.2) == Trial(warm=5, batches=1, calls=10)
    assert Trial.plan(LARGE, 1e-6, 0.2) == Trial(warm=200, batches=1, calls=200)


def test_very_large_arrays_need_no_warm_up() -> None:
    assert Trial.plan(BenchCase("broadcast", 2, 64 << 20), 0.05, 2.0) == Trial(
        warm=0, batches=1, calls=1
    )


def test_five_rounds_come_before_the_end_of_the_budget() -> None:
    assert not interleaving.is_enough(4, 1.5, 1.0)
    assert interleaving.is_enough(5, 1.0, 1.0)
    assert not interleaving.is_enough(5, 0.9, 1.0)
    assert interleaving.is_enough(interleaving.MAX_ROUNDS, 0.0, 1.0)


def test_three_rounds_do_where_they_take_three_times_the_budget() -> None:
    assert interleaving.is_enough(3, 3.0, 1.0)
    assert not interleaving.is_enough(2, 30.0, 1.0)


def test_a_call_takes_as_long_as_its_slowest_rank_among_those_that_took_part() -> None:
    assert interleaving.take_slowest([[1.0, 5.0], [2.0, 4.0], []]) == [2.0, 5.0]


def test_a_summary_has_the_median_and_the_tenths_on_both_sides() -> None:
    assert Summary.from_times([float(time) for time in range(1, 102)]) == Summary(
        51.0, 11.0, 91.0, 101
    )


def test_the_summary_of_one_time_is_that_time() -> None:
    assert Summary.from_times([2.5]) == Summary(2.5, 2.5, 2.5, 1)
