"""The benchmark's pure part: whose turn it is, how many calls, what the times come to."""

import itertools

from allhands.bench import turns
from allhands.bench.turns import Summary


def test_every_contender_comes_first_and_after_every_place_equally_often() -> None:
    rounds = list(itertools.islice(turns.rotations(["a", "b", "c"]), 6))
    assert rounds[:3] == [("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b")]
    assert rounds[3:] == rounds[:3]
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)


def test_without_contenders_there_are_no_rounds() -> None:
    assert list(turns.rotations([])) == []


def test_a_turn_has_as_many_calls_as_fit_and_one_at_least() -> None:
    assert turns.calls_in_turn(float("inf"), 1.0, rewritten=False) == 1
    assert turns.calls_in_turn(10.0, 1.0, rewritten=False) == 1
    assert turns.calls_in_turn(1e-3, 0.1, rewritten=False) == 10
    assert turns.calls_in_turn(1e-7, 1.0, rewritten=False) == 2000
    assert turns.calls_in_turn(1e-7, 1.0, rewritten=True) == 20


def test_five_rounds_come_before_the_end_of_the_budget() -> None:
    assert not turns.enough(4, 1.5, 1.0)
    assert turns.enough(5, 1.0, 1.0)
    assert not turns.enough(5, 0.9, 1.0)
    assert turns.enough(turns.MOST_ROUNDS, 0.0, 1.0)


def test_three_rounds_do_where_they_take_three_times_the_budget() -> None:
    assert turns.enough(3, 3.0, 1.0)
    assert not turns.enough(2, 30.0, 1.0)


def test_a_call_takes_as_long_as_its_slowest_rank_among_those_that_took_part() -> None:
    assert turns.slowest([[1.0, 5.0], [2.0, 4.0], []]) == [2.0, 5.0]


def test_a_summary_has_the_median_and_the_tenths_on_both_sides() -> None:
    assert Summary.of([float(time) for time in range(1, 102)]) == Summary(51.0, 11.0, 91.0, 101)


def test_the_summary_of_one_time_is_that_time() -> None:
    assert Summary.of([2.5]) == Summary(2.5, 2.5, 2.5, 1)
