"""Measurements of the machine: numbers of jobs, of operations, and how late ranks start."""

import pytest

from allhands_server.machine import measurements
from allhands_server.machine.machine import Machine
from allhands_server.machine.measurements import JobMeasurement
from allhands_server.machine.member_messages import CloseGroup, Heartbeat, Leave, OpenGroup
from allhands_server.machine.requests import MonitoredBarrier
from allhands_server.machine.store.keys import Get, Set
from allhands_server.machine.values import CallStarts, Progress
from allhands_server.testing import Transcript


def measure(t: Transcript, job: str = "j") -> JobMeasurement:
    return next(one for one in t.machine.measure(t.now).jobs if one.job == job)


def beat(t: Transcript, session: int, completed: int, operation: str = "", **more: float) -> None:
    progress = Progress("world", completed + bool(operation), completed, operation, **more)
    t.send(session, Heartbeat(progress=(progress,)))


def test_operations_count_on_each_rank_and_never_go_back() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    for session in (first, second):
        t.send(session, OpenGroup("world", (0, 1)))
    beat(t, first, 10)
    beat(t, second, 8)
    assert measure(t).operations == 18
    beat(t, first, 15)
    t.send(first, CloseGroup("world"))
    beat(t, first, 2)
    assert measure(t).operations == 15 + 8 + 2
    t.send(second, Leave((Progress("world", 9, 9),)))
    assert measure(t).operations == 15 + 9 + 2


def test_after_a_restart_operations_begin_at_zero() -> None:
    t = Transcript(machine=Machine(has_log=True))
    first, second = t.form_world(2)
    t.read_pushed(second)
    beat(t, first, 1_000)
    joined = t.machine._jobs.get("j").world
    assert joined is not None
    t.restart()
    member = t.machine._jobs.get("j").world
    assert member is not None
    restored = member.members[0]
    restored.update_progress([Progress("world", 1_000, 1_000)], t.now)
    restored.counts_first_progress = True
    assert measure(t).operations == 0
    restored.update_progress([Progress("world", 1_007, 1_007)], t.now)
    assert measure(t).operations == 7


def test_a_hang_is_the_longest_operation() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    beat(t, first, 3, "all_reduce", elapsed=2.0)
    beat(t, second, 4)
    t.now = 4.0
    found = measure(t)
    assert (found.members_in_operations, found.longest_operation) == (1, 6.0)
    assert found.oldest_heartbeat == 4.0


def test_skew_is_from_the_first_start_to_the_last() -> None:
    t = Transcript()
    sessions = t.form_world(3)
    assert measure(t).skew is None
    for session in sessions:
        t.send(session, OpenGroup("world", (0, 1, 2)))
    t.now = 100.0
    for rank, session in enumerate(sessions):
        starts = CallStarts("world", tuple((call, 90.0 + call + 0.01 * rank) for call in range(5)))
        t.send(session, Heartbeat(sent_at=100.0, call_starts=(starts,)))
    assert measure(t).skew == pytest.approx((0.02, 0.02))


def test_jobs_with_members_come_first_and_no_more_than_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measurements, "MOST_JOBS", 3)
    t = Transcript()
    t.form_world(1, job="live")
    for number in range(5):
        t.ask_now(Set(f"keys{number}", "k", b"v"))
    found = t.machine.measure(t.now)
    assert [one.job for one in found.jobs] == ["keys3", "keys4", "live"]
    assert found.job_states == {"empty": 5, "running": 1}


def test_requests_are_counted_by_kind() -> None:
    t = Transcript()
    t.form_world(1)
    t.ask_now(Set("j", "k", b"v"))
    t.ask_now(Get("j", "k"))
    t.ask_now(Get("j", "k"))
    t.ask(MonitoredBarrier("j", "member1", "world", 1), due=1.0)
    found = t.machine.measure(t.now)
    assert found.requests == {"Set": 1, "Get": 2, "MonitoredBarrier": 1}
    assert (found.sessions, measure(t).keys, measure(t).members) == (1, 1, 1)
