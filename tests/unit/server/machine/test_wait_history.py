"""Waits for late ranks over hours, in bounded memory."""

import pytest

from allhands_server.machine.world.clock_sync import ClockSync
from allhands_server.machine.world.wait_history import (
    CULPRITS_KEPT,
    GROUPS_KEPT,
    MINUTE,
    MINUTES_KEPT,
    QUARTER,
    QUARTERS_KEPT,
    WaitHistory,
)


def test_the_rank_that_waits_least_is_the_one_that_the_others_waited_for() -> None:
    history = WaitHistory()
    for at in range(10):
        history.add_call("world", {0: at, 1: at + 0.5, 2: at + 0.1}, 100.0 + at)
    history.add_call("world", {0: 20.3, 1: 20.0, 2: 20.0}, 110.0)
    [found] = history.describe(120.0, 60.0)
    assert found.calls == 11
    assert [(one.rank, one.last) for one in found.ranks] == [(1, 10), (0, 1), (2, 0)]
    assert [one.caused for one in found.ranks] == pytest.approx([4.5, 0.3, 0.0])
    assert [one.waited for one in found.ranks] == pytest.approx([0.3, 5.0, 4.3])
    [period] = found.periods
    # Since the first call, not since the full minute before it.
    assert (period.calls, period.ago) == (11, 20.0)
    assert period.skew == pytest.approx(5.3)
    assert period.worst == pytest.approx(0.5)
    assert [one.rank for one in period.late] == [1, 0]


def test_minutes_of_an_hour_become_quarters_of_an_hour_of_a_day() -> None:
    history = WaitHistory()
    hours = 30
    for minute in range(hours * 60):
        history.add_call("world", {0: 0.0, 1: 1.0 if minute % 2 else -1.0}, minute * MINUTE)
    now = hours * 60 * MINUTE
    [found] = history.describe(now, 1e9)
    assert found.calls == hours * 60
    minutes = [one for one in found.periods if one.length == MINUTE]
    quarters = [one for one in found.periods if one.length == QUARTER]
    assert (len(minutes), len(quarters)) == (MINUTES_KEPT, QUARTERS_KEPT)
    assert [one.ago for one in found.periods] == sorted(
        (one.ago for one in found.periods), reverse=True
    )
    assert {one.calls for one in quarters} == {15}
    assert quarters[0].late[0].last + quarters[0].late[1].last == 15
    [recent] = history.describe(now, 600.0)
    assert len(recent.periods) == 10


def test_what_is_kept_of_many_ranks_and_groups_is_bounded() -> None:
    history = WaitHistory()
    for late in range(200):
        starts = dict.fromkeys(range(200), 0.0)
        starts[late] = 1.0 + late
        history.add_call("world", starts, 10.0 + MINUTE * (late >= 100))
    [found] = history.describe(100.0, 1e9)
    assert [one.rank for one in found.periods[0].late] == [99, 98, 97, 96]
    assert len(found.periods[0].late) == CULPRITS_KEPT
    assert len(found.ranks) == 200
    history.add_call("world", {0: 0.0, 1: 1.0}, 2 * 3600.0)
    [found] = history.describe(2 * 3600.0, 1e9)
    [quarter] = [one for one in found.periods if one.length == QUARTER]
    assert [one.rank for one in quarter.late] == [199, 198, 197, 196]
    for group in range(2 * GROUPS_KEPT):
        history.add_call(f"g{group}", {0: 0.0, 1: 1.0}, 100.0)
    assert len(history.describe(100.0, 1e9)) == GROUPS_KEPT


def test_a_call_of_one_rank_is_none_to_wait_in() -> None:
    history = WaitHistory()
    history.add_call("world", {0: 1.0}, 1.0)
    assert history.describe(2.0, 60.0) == ()


def test_offsets_of_all_ranks_are_those_of_each() -> None:
    clocks = ClockSync()
    for rank in range(12):
        for sample in range(3):
            offset = (0.0, 0.03, 0.2, 5.0)[rank % 4]
            clocks.add_sample(rank, f"host{rank % 2}", 10.0, 10.0 + offset + 0.001 * rank + sample)
    assert clocks.estimate_all() == {
        rank: clocks.estimate_offset(rank, f"host{rank % 2}") for rank in range(12)
    }
