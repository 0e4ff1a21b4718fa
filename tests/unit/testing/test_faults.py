"""The plan of faults: draws for each message, and partitions."""

import math

import pytest

from allhands.testing.faults import COORDINATOR, Fate, FaultEvent, Plan, Way, faults, flipped

HERE, BACK, SESSION = (0, 1), (1, 0), (0, COORDINATOR)


def fates(plan: Plan, way: Way = HERE, count: int = 200, now: float = 0.0) -> list[Fate]:
    return [plan.fate(way, nth, 100, now) for nth in range(1, count + 1)]


def drawn(seed: int) -> Plan:
    return faults(seed).drop(probability=0.3).delay(0.1, probability=0.5).flip(probability=0.2)


def test_what_is_drawn_depends_on_the_seed_alone() -> None:
    first, again, other = drawn(7), drawn(7), drawn(8)
    assert fates(first) == fates(again)
    assert first.log == again.log
    assert fates(other) != fates(drawn(7))


def test_links_are_drawn_for_each_by_itself_in_whatever_order() -> None:
    first, again = drawn(7), drawn(7)
    here, back = fates(first, HERE), fates(first, BACK)
    assert here != back
    assert (fates(again, BACK), fates(again, HERE)) == (back, here)
    assert again.log == first.log


def test_a_probability_is_kept_to() -> None:
    lost = [fate.copies == 0 for fate in fates(faults(1).drop(probability=0.25), count=2000)]
    assert 400 < sum(lost) < 600


def test_a_rule_is_for_its_link_its_message_and_its_time() -> None:
    plan = faults().drop(link=HERE, nth=3).cut(link=(None, 2), after=1.0, until=2.0)
    assert [fate.copies for fate in fates(plan, HERE, 4)] == [1, 1, 0, 1]
    assert all(fate == Fate() for fate in fates(plan, BACK, 4))
    cuts = [plan.fate((1, 2), 1, 10, now).is_cut for now in (0.9, 1.0, 1.9, 2.0)]
    assert cuts == [False, True, True, False]
    assert plan.log == [
        FaultEvent(0.0, "drop", HERE, 3),
        FaultEvent(1.0, "cut", (1, 2), 1),
        FaultEvent(1.9, "cut", (1, 2), 1),
    ]


def test_rules_add_up() -> None:
    plan = faults().delay(0.5).delay(0.25).duplicate().slow(100).slow(50).reorder().flip(bit=13)
    assert plan.fate(HERE, 1, 1, 0.0) == Fate(0.75, 50, 2, False, True, (5,))


def test_a_session_is_meant_only_by_name_and_breaks_where_a_message_is_dropped() -> None:
    assert faults().drop().fate(SESSION, 1, 10, 0.0) == Fate()
    assert faults().drop(link=SESSION).fate(SESSION, 1, 10, 0.0) == Fate(is_cut=True)
    assert faults().delay(1, link=(None, COORDINATOR)).fate(SESSION, 1, 10, 0.0).delay == 1
    for name in ("duplicate", "reorder", "flip"):
        with pytest.raises(ValueError, match=name):
            getattr(faults(), name)(link=SESSION)


def test_a_partition_holds_what_goes_from_side_to_side() -> None:
    plan = faults().partition({0, 1}, {2, COORDINATOR}, after=1.0, seconds=2.0)
    assert plan.held_until((0, 2), 0.5) == 0.5
    assert plan.held_until((0, 2), 1.0) == 3.0
    assert plan.held_until((2, 0), 2.5) == 3.0
    assert plan.held_until((0, COORDINATOR), 2.5) == 3.0
    assert plan.held_until((0, 1), 2.5) == 2.5
    assert plan.held_until((0, 3), 2.5) == 2.5
    assert plan.held_until((0, 2), 3.0) == 3.0


def test_a_stall_holds_all_that_touches_a_rank_and_what_follows_it_at_once_too() -> None:
    plan = faults().stall(1, seconds=2.0).partition({0}, {1}, after=1.5)
    assert plan.held_until((1, 2), 1.0) == 2.0
    assert plan.held_until((2, 3), 1.0) == 1.0
    assert plan.held_until((0, 1), 1.0) == math.inf


def test_a_plan_that_is_over_does_nothing() -> None:
    plan = faults().drop().stall(0)
    plan.is_over = True
    assert plan.fate(HERE, 1, 10, 0.0) == Fate()
    assert plan.held_until(HERE, 1.0) == 1.0
    assert plan.log == []


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: faults().drop(probability=1.5), "probability"),
        (lambda: faults().slow(0), "partition"),
        (lambda: faults().partition({0}), "two sides"),
        (lambda: faults().partition({0, 1}, {1}), "two sides"),
    ],
)
def test_what_makes_no_sense_is_refused(make: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make()  # type: ignore[operator]


def test_a_flip_changes_that_bit_and_no_other() -> None:
    assert flipped(b"\x00\x00\x00", (0, 15)) == b"\x01\x80\x00"
