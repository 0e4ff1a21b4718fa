"""Who leads of several daemons, in virtual time: first alone, then many with a log and faults."""

import heapq
import itertools
import random
from collections.abc import Callable

import pytest

from allhands_server.machine.leadership import (
    Action,
    AppendBegun,
    AppendEmpty,
    AppendEnded,
    AppendLost,
    AppendTerm,
    Follow,
    FrameTailed,
    Lead,
    Leadership,
    LeadershipEvent,
    LogOpened,
    RefuseRequests,
    Role,
    TakeRequests,
    Term,
    TermTailed,
    Tick,
)

T = 8.0
OTHER = Term(3, "other", "h2:1")


def make(now: float = 0.0) -> Leadership:
    """Return the leadership of a daemon that has just found an empty log."""
    leadership = Leadership("me", "h1:1", T)
    assert leadership.handle(LogOpened(), now) == []
    return leadership


def make_leader() -> Leadership:
    """Return a leadership whose term was appended from 0 to 1."""
    leadership = make()
    leadership.handle(Tick(), 0.0)
    leadership.handle(AppendBegun(), 0.0)
    assert leadership.handle(AppendEnded(), 1.0) == [Lead()]
    return leadership


def make_follower() -> Leadership:
    """Return a leadership that has read the other's term, by time 2."""
    leadership = Leadership("me", "h1:1", T)
    leadership.handle(TermTailed(OTHER), 1.0)
    leadership.handle(LogOpened(), 2.0)
    return leadership


def test_a_log_without_a_leader_gets_one_at_once() -> None:
    leadership = make(5.0)
    assert leadership.next_due == 5.0 - T + T
    assert leadership.handle(Tick(), 5.0) == [AppendTerm(Term(1, "me", "h1:1"))]
    assert leadership.next_due is None
    assert leadership.handle(Tick(), 50.0) == []


def test_a_leader_answers_within_half_the_timeout_after_the_start_of_its_last_append() -> None:
    leadership = make_leader()
    assert leadership.leader == Term(1, "me", "h1:1")
    assert leadership.may_answer(3.9)
    assert not leadership.may_answer(4.0)
    leadership.handle(AppendBegun(), 4.5)
    assert not leadership.may_answer(4.6)
    leadership.handle(AppendEnded(), 5.0)
    assert leadership.may_answer(8.4)
    assert not leadership.may_answer(8.5)


def test_a_leader_appends_each_quarter_of_the_timeout() -> None:
    leadership = make_leader()
    assert leadership.next_due == 2.0
    assert leadership.handle(Tick(), 1.9) == []
    assert leadership.handle(Tick(), 2.0) == [AppendEmpty()]
    assert leadership.handle(Tick(), 2.1) == []  # it has been asked for
    leadership.handle(AppendBegun(), 2.2)
    assert leadership.handle(Tick(), 6.0) == []  # it is under way
    leadership.handle(AppendEnded(), 6.1)
    assert leadership.handle(Tick(), 6.1) == [AppendEmpty()]


def test_requests_are_refused_while_no_append_ends_and_taken_again_after_one() -> None:
    leadership = make_leader()
    leadership.handle(AppendBegun(), 2.0)
    assert leadership.next_due == 1.5 * T
    assert leadership.handle(Tick(), 1.5 * T) == [RefuseRequests()]
    assert leadership.handle(Tick(), 2 * T) == []
    assert leadership.handle(AppendEnded(), 20.0) == []  # it began too long ago
    assert leadership.handle(Tick(), 20.0) == [AppendEmpty()]
    leadership.handle(AppendBegun(), 20.0)
    assert leadership.handle(AppendEnded(), 20.5) == [TakeRequests()]
    assert leadership.handle(Tick(), 20.6) == []


def test_a_follower_tries_to_lead_after_the_timeout_without_news() -> None:
    leadership = make_follower()
    assert leadership.next_due == 2.0 + T
    leadership.handle(FrameTailed(3), 5.0)
    assert leadership.handle(Tick(), 5.0 + T - 0.1) == []
    assert leadership.handle(Tick(), 5.0 + T) == [AppendTerm(Term(4, "me", "h1:1"))]
    leadership.handle(AppendBegun(), 13.0)
    theirs = Term(4, "third", "h3:1")
    assert leadership.handle(AppendLost(theirs), 14.0) == [Follow(theirs, has_led=False)]
    assert leadership.next_due == 14.0 + T
    assert not leadership.may_answer(14.0)


def test_a_leader_that_gives_up_is_replaced_at_once() -> None:
    leadership = make_follower()
    gone = Term(3, "", "")
    assert leadership.handle(TermTailed(gone), 3.0) == [Follow(None, has_led=False)]
    assert leadership.handle(Tick(), 3.0) == [AppendTerm(Term(4, "me", "h1:1"))]


def test_a_deposed_leader_follows_once_it_has_read_the_log_anew() -> None:
    leadership = make_leader()
    leadership.handle(AppendBegun(), 2.0)
    assert leadership.handle(AppendLost(OTHER), 2.5) == [Follow(OTHER, has_led=True)]
    assert not leadership.may_answer(2.5)
    assert leadership.next_due is None
    leadership.handle(LogOpened(), 4.0)
    assert leadership.next_due == 4.0 + T
    assert leadership.handle(Tick(), 4.0 + T) == [AppendTerm(Term(4, "me", "h1:1"))]


def test_a_leader_for_the_second_time_refuses_requests_as_for_the_first() -> None:
    leadership = make_leader()
    leadership.handle(AppendBegun(), 2.0)
    assert leadership.handle(Tick(), 20.0) == [RefuseRequests()]
    leadership.handle(AppendLost(OTHER), 21.0)
    leadership.handle(LogOpened(), 21.0)
    assert [type(one) for one in leadership.handle(Tick(), 30.0)] == [AppendTerm]
    leadership.handle(AppendBegun(), 30.0)
    assert leadership.handle(AppendEnded(), 30.0) == [Lead()]
    leadership.handle(AppendBegun(), 31.0)
    assert leadership.handle(Tick(), 50.0) == [RefuseRequests()]


def test_terms_grow_past_those_of_frames() -> None:
    leadership = Leadership("me", "h1:1", T)
    leadership.handle(FrameTailed(7), 0.0)
    leadership.handle(LogOpened(), 0.0)
    assert leadership.handle(Tick(), 0.0) == [AppendTerm(Term(8, "me", "h1:1"))]


# ---------------------------------------------------------------- many


class Daemon:
    """A daemon of the simulation: its leadership, and what it has read of the log."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.leadership = Leadership(name, name, T)
        self.read = 0
        self.wakes_at = 0.0
        """Stopped until then; clocks go on."""
        self.is_appending = False


class Simulation:
    """Daemons with one log, random delays and stops."""

    def __init__(self, seed: int, has_faults: bool) -> None:
        self.random = random.Random(seed)
        self.has_faults = has_faults
        self.now = 0.0
        self.log: list[Term] = []
        self.todo: list[tuple[float, int, Callable[[], None]]] = []
        self.count = itertools.count()
        self.daemons = [Daemon(name) for name in "abc"]
        self.leads = 0
        for one in self.daemons:
            self.later(self.random.random() * T, lambda one=one: self.open(one))  # type: ignore[misc]

    def later(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.todo, (self.now + delay, next(self.count), action))

    def delay(self) -> float:
        """Draw a delay: mostly short, with faults up to three timeouts."""
        if self.has_faults and self.random.random() < 0.05:
            return self.random.random() * 3 * T
        return self.random.random() * T / 20

    def run(self, until: float) -> None:
        while self.todo and self.todo[0][0] <= until:
            self.now, _, action = heapq.heappop(self.todo)
            action()
            answering = [one.name for one in self.daemons if one.leadership.may_answer(self.now)]
            assert len(answering) <= 1, (self.now, answering)

    def awake(self, daemon: Daemon, action: Callable[[], None]) -> bool:
        """Return whether the daemon runs; else do it when it wakes."""
        if self.now >= daemon.wakes_at:
            if self.has_faults and self.random.random() < 0.01:
                daemon.wakes_at = self.now + self.random.random() * 4 * T
            return True
        self.later(daemon.wakes_at - self.now, action)
        return False

    def open(self, daemon: Daemon) -> None:
        def finish() -> None:
            if not self.awake(daemon, finish):
                return
            self.read_terms(daemon)
            self.give(daemon, LogOpened())
            self.deliver(daemon)

        self.later(self.delay(), finish)

    def read_terms(self, daemon: Daemon) -> None:
        while daemon.read < len(self.log):
            entry = self.log[daemon.read]
            daemon.read += 1
            event = TermTailed(entry) if entry.address else FrameTailed(entry.number)
            self.give(daemon, event)

    def deliver(self, daemon: Daemon) -> None:
        """Read the log's news, and look again, as long as it follows."""

        def look() -> None:
            if daemon.leadership.role is not Role.FOLLOWER:
                return
            if not self.awake(daemon, look):
                return
            self.read_terms(daemon)
            self.give(daemon, Tick())
            self.later(self.delay(), look)

        look()

    def give(self, daemon: Daemon, event: LeadershipEvent) -> None:
        for action in daemon.leadership.handle(event, self.now):
            self.act(daemon, action)

    def act(self, daemon: Daemon, action: Action) -> None:
        match action:
            case AppendTerm(term):
                self.append(daemon, term)
            case AppendEmpty():
                self.append(daemon, Term(daemon.leadership.number, daemon.name, ""))
            case Lead():
                self.leads += 1
                self.beat(daemon)
            case Follow(_, has_led=True):
                self.open(daemon)
            case _:
                pass

    def beat(self, daemon: Daemon) -> None:
        def look() -> None:
            if daemon.leadership.role is not Role.LEADER:
                return
            if self.awake(daemon, look):
                self.give(daemon, Tick())
                self.later(T / 50, look)

        look()

    def append(self, daemon: Daemon, entry: Term) -> None:
        assert not daemon.is_appending
        daemon.is_appending = True
        self.give(daemon, AppendBegun())
        slot = daemon.read

        def arrive() -> None:
            is_ours = len(self.log) == slot
            if is_ours:
                self.log.append(entry)
            self.later(self.delay(), lambda: end(is_ours))

        def end(is_ours: bool) -> None:
            if not self.awake(daemon, lambda: end(is_ours)):
                return
            daemon.is_appending = False
            was_candidate = daemon.leadership.role is Role.CANDIDATE
            if is_ours:
                daemon.read = slot + 1
                self.give(daemon, AppendEnded())
                return
            there = self.log[slot]
            self.give(daemon, AppendLost(there if there.address else None))
            if was_candidate:
                self.deliver(daemon)

        self.later(self.delay(), arrive)


@pytest.mark.parametrize("seed", range(60))
def test_at_no_time_two_daemons_may_answer(seed: int) -> None:
    simulation = Simulation(seed, has_faults=True)
    simulation.run(100 * T)
    assert simulation.leads > 1  # the leader has changed
    terms = [one.number for one in simulation.log if one.address]
    assert terms == sorted(set(terms))


@pytest.mark.parametrize("seed", range(10))
def test_without_faults_there_is_one_leader_and_it_stays(seed: int) -> None:
    simulation = Simulation(seed, has_faults=False)
    simulation.run(3 * T)
    answering = [one for one in simulation.daemons if one.leadership.may_answer(simulation.now)]
    assert len(answering) == 1
    simulation.run(50 * T)
    assert simulation.leads == 1
    assert {one.leadership.leader for one in simulation.daemons} == {answering[0].leadership.leader}
    assert answering[0].leadership.may_answer(simulation.now)
