"""Silent members: evidence of life, states, and loss."""

from collections.abc import Collection, Mapping

import pytest

from allhands_proto.verdicts import State, Verdict
from allhands_server.machine import Machine
from allhands_server.machine.effects import (
    Condition,
    Conditions,
    IndirectProbe,
    InspectProcess,
    MemberLost,
    Probe,
)
from allhands_server.machine.events import ConnectionAcknowledged, ProcessInspected
from allhands_server.machine.member_messages import Heartbeat, IndirectAck
from allhands_server.machine.refusals import Status
from allhands_server.machine.requests import AwaitVerdict, DescribeJob
from allhands_server.testing import Transcript

HERE = "here"
STEP = 0.1


class Ranks:
    """A world whose members send heartbeats each second, except silent ones."""

    def __init__(self, size: int, *, window: float = 0.0, here: bool = True) -> None:
        self.t = Transcript(machine=Machine(HERE if here else ""))
        self.sessions = self.t.form_world(size, window=window, pid_namespace=HERE if here else "")
        self.silent: Collection[int] = ()
        self.sights: Mapping[int, str] = {}
        """How the processes of silent ranks look, where somebody can see them."""
        self.acknowledging: Collection[int] = ()
        self.heard_by_peers: Collection[int] = ()
        self.told: dict[int, list[object]] = {rank: [] for rank in range(size)}
        self._beats = 0

    def at(self, until: float) -> None:
        """Advance the time; shell and members answer the machine's requests."""
        while self.t.now < until - STEP / 2:
            self.t.advance_to(round(self.t.now + STEP, 3))
            self._answer()
            if self.t.now >= self._beats + 1:
                self._beats += 1
                for rank in self._beating():
                    self.t.send(self.sessions[rank], Heartbeat())

    def conditions(self, rank: int) -> list[tuple[int, State | None]]:
        """Return the silent ranks announced to a rank, and those silent no more."""
        return [
            (one.rank, one.absent.state if one.absent else None)
            for one in self.list_conditions(rank)
        ]

    def list_conditions(self, rank: int) -> list[Condition]:
        messages = [one for one in self.told[rank] if isinstance(one, Conditions)]
        return [condition for one in messages for condition in one.changes]

    def lost(self, rank: int) -> list[MemberLost]:
        return [one for one in self.told[rank] if isinstance(one, MemberLost)]

    def _beating(self) -> list[int]:
        ended = self.t.ends.keys()
        return [
            rank
            for rank, session in enumerate(self.sessions)
            if rank not in self.silent and session not in ended
        ]

    def _answer(self) -> None:
        looks, self.t.inspections = self.t.inspections, []
        for look in looks:
            rank = int(look.member_id.removeprefix("member")) - 1
            self.t.handle(
                ProcessInspected("j", look.member_id, self.sights.get(rank, "running"), "at f")
            )
        checks, self.t.connection_checks = self.t.connection_checks, []
        for check in checks:
            if check.session - 1 in self.acknowledging:
                self.t.handle(ConnectionAcknowledged("j", check.member_id))
        for rank, session in enumerate(self.sessions):
            told = self.t.read_pushed(session)
            self.told[rank] += told
            for one in told:
                if rank in self.silent or session in self.t.ends:
                    continue
                if isinstance(one, Probe):
                    self.t.send(session, Heartbeat(one.probe))
                elif isinstance(one, IndirectProbe) and one.rank in self.heard_by_peers:
                    self.t.send(session, IndirectAck(one.rank))


@pytest.mark.parametrize(
    ("sight", "state", "words"),
    [
        ("stopped", "paused", "its process is stopped (SIGSTOP, or a debugger)"),
        ("running", "stalled", "something holds up its interpreter"),
    ],
)
def test_who_is_silent_and_seen_to_live_is_named_within_3_s_and_never_lost(
    sight: str, state: State, words: str
) -> None:
    ranks = Ranks(3)
    ranks.at(1.0)
    ranks.silent, ranks.sights = [2], {2: sight}
    ranks.at(4.0)
    assert ranks.conditions(0) == ranks.conditions(1) == [(2, state)]
    [condition] = ranks.list_conditions(0)
    assert condition.absent is not None
    assert words in condition.absent.text
    assert condition.absent.stack == "at f"
    ranks.at(120.0)
    assert ranks.lost(0) == []
    assert ranks.conditions(0) == [(2, state)]
    member = ranks.t.ask_now(DescribeJob("j")).members[2]
    assert member.condition is not None
    assert member.condition.state == state


def test_who_is_heard_again_is_what_it_was_before() -> None:
    ranks = Ranks(2)
    ranks.silent = [1]
    ranks.at(20.0)
    ranks.silent = []
    ranks.at(25.0)
    assert ranks.conditions(0) == [(1, "stalled"), (1, None)]
    assert ranks.t.ask_now(DescribeJob("j")).members[1].condition is None
    ranks.at(60.0)
    assert ranks.t.ends == {}


def test_a_host_that_acknowledges_speaks_for_a_member_at_which_nobody_can_look() -> None:
    ranks = Ranks(2, here=False)
    ranks.silent, ranks.acknowledging = [1], [1]
    ranks.at(60.0)
    assert ranks.lost(0) == []
    assert ranks.conditions(0) == [(1, "stalled")]
    ranks.acknowledging = []
    ranks.at(80.0)
    [lost] = ranks.lost(0)
    assert lost.rank == 1


def test_who_is_silent_with_nothing_that_speaks_for_it_is_lost_after_the_window() -> None:
    ranks = Ranks(3, here=False)
    ranks.at(1.0)
    ranks.silent = [2]
    ranks.at(5.8)
    assert ranks.lost(0) == []
    ranks.at(6.2)
    [lost] = ranks.lost(0)
    assert (lost.rank, lost.reason) == (2, "no heartbeat for 5.0 s")
    [fate] = lost.verdict.absent
    assert fate.state == "unreachable"
    assert ranks.conditions(0) == []


@pytest.mark.parametrize("sight", ["stopped", "running"])
def test_a_window_that_was_asked_for_ends_in_a_loss_also_of_who_lives(sight: str) -> None:
    ranks = Ranks(2, window=5.0)
    ranks.silent, ranks.sights = [1], {1: sight}
    ranks.at(5.2)
    [lost] = ranks.lost(0)
    assert lost.verdict.absent[0].state in ("paused", "stalled")


def test_whom_only_the_coordinator_does_not_hear_is_called_that_and_stays() -> None:
    ranks = Ranks(4, here=False)
    ranks.silent, ranks.heard_by_peers = [2], [2]
    ranks.at(60.0)
    assert ranks.lost(0) == []
    assert ranks.conditions(0) == [(2, "unreachable")]
    [told] = ranks.list_conditions(0)
    assert told.absent is not None
    assert "unreachable from the coordinator" in told.absent.text
    assert "paused" not in told.absent.text


@pytest.mark.parametrize("window", [0.0, 5.0])
def test_after_an_outage_every_member_has_a_fresh_window(window: float) -> None:
    ranks = Ranks(3, window=window, here=False)
    ranks.at(1.0)
    ranks.silent = [0, 1, 2]
    ranks.at(11.0)
    assert ranks.t.ends == {}
    ranks.silent = [1, 2]
    ranks.at(19.0)
    assert ranks.t.ends == {}
    ranks.silent = [2]
    ranks.at(25.0)
    assert [lost.rank for lost in ranks.lost(0)] == [2]
    ranks.at(60.0)
    assert [lost.rank for lost in ranks.lost(0)] == [2]


def test_a_world_that_is_silent_for_a_minute_is_over() -> None:
    ranks = Ranks(2, here=False)
    ranks.silent = [0, 1]
    ranks.at(59.0)
    assert ranks.t.ends == {}
    ranks.at(72.0)
    assert len(ranks.t.ends) == 2


def test_a_newcomer_shows_that_the_coordinator_is_not_cut_off() -> None:
    ranks = Ranks(2, here=False)
    ranks.silent = [0, 1]
    ranks.at(10.0)
    refused = ranks.t.join(0, 2)
    refusal = ranks.t.ends[refused]
    assert refusal is not None
    assert refusal.status is Status.UNAVAILABLE  # it tries again
    ranks.at(16.5)
    assert ranks.t.join(0, 2) not in ranks.t.ends


def test_who_lives_is_lost_some_time_after_the_deadline_of_a_call_that_waits_for_it() -> None:
    ranks = Ranks(2)
    ranks.at(1.0)
    ranks.silent, ranks.sights = [1], {1: "stopped"}
    early = ranks.t.ask(AwaitVerdict("j", "member1", "world", 7, "all_reduce", (1,)), due=4.0)
    late = ranks.t.ask(AwaitVerdict("j", "member1", "world", 8, "all_reduce", (1,)), due=20.0)
    ranks.at(6.0)
    found = ranks.t.outcomes[early]
    assert isinstance(found, Verdict)
    assert [one.state for one in found.absent] == ["paused"]
    ranks.at(20.4)
    found = ranks.t.outcomes[late]
    assert isinstance(found, Verdict)
    assert [one.state for one in found.absent] == ["paused"]
    assert ranks.lost(0) == []
    ranks.at(21.2)
    [lost] = ranks.lost(0)
    assert lost.reason == "silent for 19.5 s, past the deadline of all_reduce #8"


@pytest.mark.parametrize(
    ("sight", "is_lost"), [("gone", True), ("", True), ("running", False), ("stopped", False)]
)
def test_the_session_of_who_is_silent_for_long_may_break_without_a_loss_if_it_lives(
    sight: str, is_lost: bool
) -> None:
    ranks = Ranks(2)
    ranks.silent, ranks.sights = [1], {1: "stopped"}
    ranks.at(30.0)
    ranks.sights = {1: sight}
    ranks.t.break_session(ranks.sessions[1])
    ranks.at(30.5)
    assert bool(ranks.lost(0)) == is_lost
    ranks.at(60.0)
    assert bool(ranks.lost(0)) == is_lost


def test_probes_of_who_is_silent_for_long_become_rare() -> None:
    ranks = Ranks(2)
    ranks.silent = [1]
    ranks.at(600.0)
    probes = [one for one in ranks.told[1] if isinstance(one, Probe)]
    assert len(probes) < 90


def test_the_stack_of_who_is_silent_is_asked_for_until_it_is_known() -> None:
    t = Transcript(machine=Machine(HERE))
    first, second = t.form_world(2, pid_namespace=HERE)
    t.advance_to(1.9)
    t.send(first, Heartbeat())
    t.advance_to(2.4)
    assert t.inspections == [
        InspectProcess("j", "member2", 1002, "born2", "")
    ]  # it has no channel for that
    assert second not in t.ends
