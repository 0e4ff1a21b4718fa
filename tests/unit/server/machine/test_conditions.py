"""Conditions of many silent members: batched, bounded, and none by the coordinator's own fault."""

from collections.abc import Iterable

import pytest

from allhands_server.machine import Machine
from allhands_server.machine.effects import Condition, Conditions, IndirectProbe, Probe
from allhands_server.machine.events import ProcessInspected, Tick
from allhands_server.machine.member_messages import Heartbeat
from allhands_server.machine.world.conditions import LARGEST_BATCH
from allhands_server.testing import Transcript

HERE = "here"


class ManyRanks:
    """A world whose processes the coordinator can inspect, and finds running."""

    def __init__(self, size: int) -> None:
        self.t = Transcript(machine=Machine(HERE))
        self.sessions = self.t.form_world(size, pid_namespace=HERE)
        self.told: list[list[Conditions]] = [[] for _ in range(size)]
        self.probes = 0

    def beat(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self.t.send(self.sessions[rank], Heartbeat())

    def at(self, until: float, beating: Iterable[int] = ()) -> None:
        """Let time pass; the beating ranks send a heartbeat each half second."""
        while self.t.now < until:
            self.t.advance_to(round(min(until, self.t.now + 0.05), 3))
            self.answer()
            if round(self.t.now * 20) % 10 == 0:
                self.beat(beating)

    def answer(self) -> None:
        looks, self.t.inspections = self.t.inspections, []
        for look in looks:
            self.t.handle(ProcessInspected("j", look.member_id, "running"))
        self.t.connection_checks.clear()
        for rank, session in enumerate(self.sessions):
            for one in self.t.read_pushed(session):
                if isinstance(one, Conditions):
                    self.told[rank].append(one)
                self.probes += isinstance(one, Probe)

    def changes(self, rank: int) -> list[Condition]:
        return [one for message in self.told[rank] for one in message.changes]


def test_all_members_hear_of_many_silent_ones_in_few_messages_of_one_object() -> None:
    size, silent = 400, range(100, 400)
    ranks = ManyRanks(size)
    ranks.at(6.0, range(100))
    for rank in range(100):
        told = ranks.changes(rank)
        assert sorted(one.rank for one in told) == [*silent]
        assert {one.absent.state for one in told if one.absent} == {"stalled"}
        assert len(ranks.told[rank]) <= 3
    assert len({id(one) for rank in range(100) for one in ranks.told[rank]}) <= 3


def test_one_message_names_a_bounded_number_and_the_next_the_others() -> None:
    size = LARGEST_BATCH + 100
    ranks = ManyRanks(size)
    ranks.at(8.0, [0])
    assert [len(one.changes) for one in ranks.told[0]] == [LARGEST_BATCH, size - 1 - LARGEST_BATCH]
    assert [one.more for one in ranks.told[0]] == [size - 1 - LARGEST_BATCH, 0]


def test_members_that_come_and_go_cost_messages_by_time_and_not_by_number() -> None:
    size = 200
    ranks = ManyRanks(size)
    flapping = range(1, size)
    for start in range(0, 40, 4):
        ranks.at(start + 3.5, [0])
        ranks.beat(flapping)
        ranks.at(start + 4.0, [0])
    # Each silence and its end for each rank: 199 * 20 changes.
    assert len(ranks.changes(0)) == 199 * 20
    assert len(ranks.told[0]) <= 80


def test_a_condition_that_is_over_before_it_is_sent_is_not_sent() -> None:
    size = 200
    ranks = ManyRanks(size)
    beating = range(1, size)
    ranks.at(2.59, beating)
    ranks.t.advance_to(2.61)  # it has been judged, and the message gathers others
    assert ranks.t.machine.next_due is not None
    ranks.beat([0])
    ranks.at(4.0, range(size))
    assert ranks.changes(1) == []


def test_heartbeats_that_lie_unread_in_a_late_coordinator_are_held_against_nobody() -> None:
    ranks = ManyRanks(50)
    for second in range(1, 30):
        # It was busy for two seconds and a half, and its timers come first.
        ranks.t.oversleep(second * 2.5)
        ranks.beat(range(50))
        ranks.answer()
    assert ranks.told == [[]] * 50
    assert ranks.probes == 0


@pytest.mark.parametrize("busy_from", [2.2, 2.4])
def test_answers_to_probes_that_lie_unread_are_waited_for(busy_from: float) -> None:
    ranks = ManyRanks(3)
    ranks.t.advance_to(busy_from)
    ranks.answer()
    assert ranks.probes == 3
    ranks.t.oversleep(3.1)  # in between they have answered
    ranks.answer()
    ranks.t.advance_to(3.35)
    assert ranks.told == [[]] * 3
    ranks.beat(range(3))
    ranks.at(5.0, range(3))
    assert ranks.told == [[]] * 3


def test_a_coordinator_that_is_always_late_names_the_silent_all_the_same() -> None:
    ranks = ManyRanks(3)
    now = 0.0
    while not ranks.told[0] and now < 40.0:
        now += 0.7
        ranks.t.oversleep(now)
        ranks.beat([0, 1])
        ranks.answer()
    assert [one.rank for one in ranks.changes(0)] == [2]


@pytest.mark.parametrize("size", [4, 64])
def test_members_that_beat_cost_timers_by_time_and_not_by_number(size: int) -> None:
    t = Transcript()
    sessions = t.form_world(size)
    ticks = 0
    for step in range(1, 400):
        now = step * 0.05
        while (due := t.machine.next_due) is not None and due <= now:
            t.now = due
            t.handle(Tick())
            ticks += 1
        t.now = now
        for rank, session in enumerate(sessions):
            if (step + rank) % 20 == 0:
                t.send(session, Heartbeat())
    assert ticks <= 21


def test_peers_of_near_ranks_are_asked_about_a_silent_one() -> None:
    ranks = ManyRanks(100)
    asked = []
    while ranks.t.now < 2.5:
        ranks.t.advance_to(round(ranks.t.now + 0.05, 3))
        if round(ranks.t.now * 20) % 10 == 0:
            ranks.beat(one for one in range(100) if one not in (50, 51))
        for rank, session in enumerate(ranks.sessions):
            told = ranks.t.read_pushed(session)
            asked += [(rank, one.rank) for one in told if isinstance(one, IndirectProbe)]
    assert sorted(rank for rank, about in asked if about == 50) == [45, 46, 47, 48, 49, 52, 53, 54]


def test_members_that_fall_silent_one_after_the_other_are_looked_at_together() -> None:
    size = 300
    t = Transcript()
    sessions = t.form_world(size)
    for rank, session in enumerate(sessions):
        t.advance_to(rank / size)
        t.send(session, Heartbeat())
    looks, last = 0, 0
    while t.now < 3.5:
        due = t.machine.next_due
        assert due is not None
        t.now = due
        t.handle(Tick())
        looks += len(t.connection_checks) > last
        last = len(t.connection_checks)
    assert {one.session for one in t.connection_checks} == {*sessions}
    assert looks <= 15
