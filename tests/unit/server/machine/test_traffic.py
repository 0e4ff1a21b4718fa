"""Traffic of the coordinator: routine of n workers costs n messages, not n^2."""

import sys
from collections import Counter
from typing import Any

import pytest

from allhands_server.machine.effects import Effect, EndSession, MemberLeft, Push
from allhands_server.machine.member_messages import (
    CloseGroup,
    Heartbeat,
    Leave,
    LinkBroken,
    OpenGroup,
)
from allhands_server.machine.requests import AwaitVerdict, Barrier, MonitoredBarrier
from allhands_server.machine.values import CallStarts, Progress
from allhands_server.testing import Transcript

SIZES = [4, 16, 64]


class Counting(Transcript):
    """A transcript with counts of messages to sessions by kind."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.said: Counter[str] = Counter()

    def _check_effect(self, effect: Effect) -> None:
        super()._check_effect(effect)
        if isinstance(effect, Push):
            self.said[type(effect.notification).__name__] += 1
        elif isinstance(effect, EndSession):
            self.said["End"] += 1


@pytest.mark.parametrize("size", SIZES)
def test_joining_costs_two_messages_for_each_worker(size: int) -> None:
    t = Counting()
    for rank in range(size):
        t.join(rank, size)
    assert t.said == {"Joined": size, "WorldFormed": size}


@pytest.mark.parametrize("size", SIZES)
def test_all_members_are_told_of_the_world_in_one_and_the_same_object(size: int) -> None:
    t = Transcript()
    sessions = [t.join(-1, size) for _ in range(size)]
    assert len({id(t.read_pushed(session)[-1]) for session in sessions}) == 1


@pytest.mark.parametrize("size", SIZES)
def test_groups_and_heartbeats_cost_no_message(size: int) -> None:
    t = Counting()
    sessions = t.form_world(size)
    t.said.clear()
    for session in sessions:
        t.send(session, OpenGroup("world", tuple(range(size))))
        t.send(session, Heartbeat(0, (Progress("world", 1, 0, "all_reduce"),)))
    for session in sessions:
        t.send(session, CloseGroup("world"))
    assert t.said == {}


@pytest.mark.parametrize("size", SIZES)
def test_members_that_beat_are_not_probed(size: int) -> None:
    t = Counting()
    sessions = t.form_world(size, window=5.0)
    t.said.clear()
    for second in range(1, 20):
        t.advance_to(float(second))
        for session in sessions:
            t.send(session, Heartbeat())
    assert t.said == {}


@pytest.mark.parametrize("size", SIZES)
def test_a_call_that_all_ranks_complain_about_costs_one_probe_for_each(size: int) -> None:
    t = Counting()
    sessions = t.form_world(size)
    t.said.clear()
    for rank in range(size):
        t.ask(AwaitVerdict("j", f"member{sessions[rank]}", "world", 1, "barrier"), 2.0)
    t.advance_to(1.9)
    assert t.said == {"Probe": size}


@pytest.mark.parametrize("size", SIZES)
def test_a_death_that_all_others_notice_costs_two_messages_for_each_of_them(size: int) -> None:
    t = Counting()
    sessions = t.form_world(size)
    t.said.clear()
    for session in sessions[1:]:
        t.send(session, LinkBroken(0, "reset"))
    t.break_session(sessions[0])
    assert t.said == {"Probe": size - 1, "MemberLost": size - 1}


def test_who_leaves_is_told_of_to_all_in_one_and_the_same_object() -> None:
    # That all hear of all who leave is a square; the shell sends what waits for one together.
    t = Transcript()
    sessions = t.form_world(64)
    t.send(sessions[0], Leave())
    told = [t.read_pushed(session) for session in sessions[1:]]
    assert [type(one) for [one] in told] == [MemberLeft] * 63
    assert len({id(one) for [one] in told}) == 1


class WorkCounter:
    """Counts the lines of Python that run in a block: what work costs, on any machine."""

    def __init__(self) -> None:
        self.lines = 0

    def __enter__(self) -> "WorkCounter":
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: object, event: str, arg: object) -> Any:
        self.lines += event == "line"
        return self._trace


def count_work(size: int) -> dict[str, int]:
    """Return the lines that the operations of a world take."""
    t = Transcript()
    work: dict[str, int] = {}
    participants = tuple(map(str, range(size)))
    with WorkCounter() as counter:
        sessions = t.form_world(size)
    work["join"] = counter.lines
    with WorkCounter() as counter:
        for session in sessions:
            t.ask(MonitoredBarrier("j", f"member{session}", "world", 1), 100.0)
    work["monitored barrier"] = counter.lines
    with WorkCounter() as counter:
        for name in participants:
            t.ask(Barrier("j", "b", name, participants), 100.0)
    work["barrier"] = counter.lines
    with WorkCounter() as counter:
        for session in sessions:
            t.send(session, OpenGroup("world", tuple(range(size))))
    work["group"] = counter.lines
    with WorkCounter() as counter:
        for session in sessions:
            calls = (CallStarts("world", ((1, 1.0),)),)
            t.send(session, Heartbeat(0, (Progress("world", 1, 1),), "", 1.0, calls))
    work["heartbeats"] = counter.lines
    with WorkCounter() as counter:
        t.break_session(sessions[0])
        t.advance_to(1.0)
    work["loss"] = counter.lines
    assert len(t.read_pushed(sessions[1])) == 1
    return work


def test_the_work_of_an_operation_grows_with_the_world_and_not_with_its_square() -> None:
    small, large = count_work(40), count_work(160)
    assert {name: large[name] / small[name] < 6 for name in small} == dict.fromkeys(small, True)
