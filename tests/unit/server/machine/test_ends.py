"""Knowledge about a departed member (dead, paused, cut off), with sources."""

from collections.abc import Sequence

import pytest

from allhands_proto.verdicts import AbsentRank, State, Verdict
from allhands_server.machine import Machine
from allhands_server.machine.effects import (
    BrokenLinks,
    InspectPeer,
    InspectProcess,
    MemberLost,
    Probe,
)
from allhands_server.machine.events import ProcessInspected
from allhands_server.machine.member_messages import Heartbeat, LinkBroken, PeerInspected
from allhands_server.machine.requests import ReportExit
from allhands_server.testing import Transcript

HERE = "here"


def fates(t: Transcript, session: int) -> list[tuple[int, State, int | None, int | None]]:
    """Return the losses announced to a member."""
    lost = [one.verdict for one in t.read_pushed(session) if isinstance(one, MemberLost)]
    return [
        (one.rank, one.state, one.exit_status, one.signal)
        for verdict in lost
        for one in verdict.absent
    ]


def exit_of(session: int, status: int) -> ReportExit:
    return ReportExit("j", HERE, 1000 + session, f"born{session}", status)


# ---------------------------------------------------------------- dead


@pytest.mark.parametrize(
    ("status", "known", "words"),
    [
        (-9, (None, 9), "killed by SIGKILL"),
        (3, (3, None), "it ended with exit status 3"),
        (0, (0, None), "it ended with exit status 0, without having left the job"),
    ],
)
def test_an_exit_that_was_reported_makes_a_broken_session_a_death_at_once(
    status: int, known: tuple[int | None, int | None], words: str
) -> None:
    t = Transcript()
    first, second, third = t.form_world(3, pid_namespace=HERE, exit_is_reported=True)
    t.break_session(third)
    t.advance_to(0.1)
    assert t.ask_now(exit_of(third, status)) is True
    [told] = [one for one in t.read_pushed(first) if isinstance(one, MemberLost)]
    [fate] = told.verdict.absent
    assert (fate.rank, fate.state, fate.exit_status, fate.signal) == (2, "dead", *known)
    assert told.verdict.text == fate.text == f"rank 2 (host host3, pid 1003) is dead: {words}"
    assert [one.verdict for one in t.read_pushed(second) if isinstance(one, MemberLost)] == [
        told.verdict
    ]


def test_an_exit_that_is_reported_first_leaves_time_for_last_words() -> None:
    t = Transcript()
    first, second = t.form_world(2, pid_namespace=HERE, exit_is_reported=True)
    t.ask_now(exit_of(second, 1))
    t.advance_to(0.19)
    assert fates(t, first) == []
    t.advance_to(0.2)
    assert fates(t, first) == [(1, "dead", 1, None)]


def test_an_exit_that_was_reported_first_counts_when_the_session_breaks() -> None:
    t = Transcript()
    first, second = t.form_world(2, pid_namespace=HERE, exit_is_reported=True)
    t.ask_now(exit_of(second, -6))
    t.break_session(second)
    assert fates(t, first) == [(1, "dead", None, 6)]


@pytest.mark.parametrize(
    "exit",
    [
        ReportExit("j", HERE, 1002, "born9", 1),
        ReportExit("j", "elsewhere", 1002, "born2", 1),
        ReportExit("j", HERE, 1009, "born2", 1),
    ],
)
def test_the_exit_of_another_process_means_nothing(exit: ReportExit) -> None:
    t = Transcript()
    first, _ = t.form_world(2, pid_namespace=HERE)
    assert t.ask_now(exit) is False
    t.advance_to(1.0)
    assert fates(t, first) == []


def test_a_process_that_the_coordinator_sees_to_be_gone_is_dead_at_once() -> None:
    t = Transcript(machine=Machine(HERE))
    first, second = t.form_world(2, pid_namespace=HERE)
    t.break_session(second)
    assert t.inspections == [InspectProcess("j", "member2", 1002, "born2")]
    t.handle(ProcessInspected("j", "member2", "gone"))
    assert fates(t, first) == [(1, "dead", None, None)]


def test_a_neighbour_is_asked_where_the_coordinator_cannot_look() -> None:
    t = Transcript()
    first, second, third = t.form_world(3, pid_namespace=HERE)
    t.break_session(third)
    assert t.inspections == []
    assert t.read_pushed(first) == [InspectPeer("member3", 1003, "born3")]
    assert t.read_pushed(second) == []
    t.send(first, PeerInspected("member3", "zombie"))
    assert fates(t, second) == [(2, "dead", None, None)]


def test_who_is_watched_is_not_buried_before_its_exit_is_told_or_the_grace_is_over() -> None:
    t = Transcript(machine=Machine(HERE))
    first, second = t.form_world(2, pid_namespace=HERE, exit_is_reported=True)
    t.break_session(second)
    t.handle(ProcessInspected("j", "member2", "gone"))
    t.advance_to(0.49)
    assert fates(t, first) == []
    t.advance_to(0.5)
    assert fates(t, first) == [(1, "dead", None, None)]


def test_a_process_that_closes_its_sockets_before_it_ends_is_looked_at_twice() -> None:
    t = Transcript(machine=Machine(HERE))
    first, second = t.form_world(2, pid_namespace=HERE)
    t.break_session(second)
    t.handle(ProcessInspected("j", "member2", "running"))
    t.advance_to(0.25)
    assert len(t.inspections) == 2
    t.handle(ProcessInspected("j", "member2", "gone"))
    assert fates(t, first) == [(1, "dead", None, None)]


def test_a_process_that_lives_on_without_its_session_is_unreachable_and_lost() -> None:
    t = Transcript(machine=Machine(HERE))
    first, second = t.form_world(2, pid_namespace=HERE)
    t.break_session(second)
    for until in (0.25, 0.5):
        t.handle(ProcessInspected("j", "member2", "running"))
        t.advance_to(until)
    [told] = [one for one in t.read_pushed(first) if isinstance(one, MemberLost)]
    assert told.verdict.absent[0].state == "unreachable"
    assert "though its process lives" in told.verdict.text


def test_nobody_answers_for_who_is_heard_again_or_gone() -> None:
    t = Transcript(machine=Machine(HERE))
    first, second = t.form_world(2, pid_namespace=HERE)
    t.handle(ProcessInspected("j", "member2", "stopped"))
    t.handle(ProcessInspected("j", "stranger", "gone"))
    t.handle(ProcessInspected("no job", "member2", "gone"))
    assert t.read_pushed(first) == t.read_pushed(second) == []


# ---------------------------------------------------------------- silent


def test_who_is_silent_and_gone_is_lost_when_that_is_seen() -> None:
    t = Transcript(machine=Machine(HERE))
    first, second = t.form_world(2, pid_namespace=HERE)
    t.advance_to(2.5)
    t.send(first, Heartbeat())
    t.handle(ProcessInspected("j", "member2", "gone"))
    assert fates(t, first) == [(1, "dead", None, None)]
    assert second in t.ends


# ---------------------------------------------------------------- unreachable


def ruling(t: Transcript, session: int) -> BrokenLinks:
    [found] = [one for one in t.read_pushed(session) if isinstance(one, BrokenLinks)]
    return found


def answer(t: Transcript, sessions: Sequence[int]) -> None:
    for session in sessions:
        for one in t.read_pushed(session):
            assert isinstance(one, Probe)
            t.send(session, Heartbeat(one.probe))


def blamed(verdict: Verdict) -> list[tuple[int, State]]:
    return [(one.rank, one.state) for one in verdict.absent]


def test_of_two_live_members_whose_link_broke_the_higher_rank_is_named_to_all() -> None:
    for reporter, suspect in ((0, 1), (1, 0)):
        t = Transcript()
        sessions = t.form_world(3)
        t.send(sessions[reporter], LinkBroken(suspect, "reset"))
        answer(t, sessions)
        t.advance_to(0.3)
        rulings = [ruling(t, session) for session in sessions]
        assert rulings == rulings[:1] * 3
        assert rulings[0].pairs == ((0, 1),)
        assert blamed(rulings[0].verdict) == [(1, "unreachable")]
        text = rulings[0].verdict.text
        assert text == (
            "rank 1 (host host2, pid 1002) is unreachable for rank 0 (host host1, pid 1001): "
            "the link broke (reset), though the coordinator hears both"
        )
        t.advance_to(1.0)
        assert t.ends == {}


def test_whom_most_links_fail_is_named() -> None:
    t = Transcript()
    sessions = t.form_world(4)
    for rank in (0, 2, 3):
        t.send(sessions[rank], LinkBroken(1, "reset"))
    answer(t, sessions)
    t.advance_to(0.3)
    found = ruling(t, sessions[0])
    assert blamed(found.verdict) == [(1, "unreachable")]
    assert found.pairs == ((0, 1), (1, 2), (1, 3))
    assert "for rank 0 (host host1, pid 1001), rank 2" in found.verdict.text


def test_what_was_ruled_is_not_ruled_again() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    t.send(first, LinkBroken(1, "reset"))
    answer(t, [second])
    t.advance_to(0.3)
    ruling(t, first)
    t.send(second, LinkBroken(0, "reset"))
    answer(t, [first])
    t.advance_to(1.0)
    assert not any(isinstance(one, BrokenLinks) for one in t.read_pushed(first))


def test_nothing_is_ruled_as_long_as_a_suspect_does_not_answer() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    t.send(first, LinkBroken(1, "reset"))
    t.advance_to(1.5)
    assert t.read_pushed(first) == []
    answer(t, [second])
    t.advance_to(1.8)
    assert blamed(ruling(t, first).verdict) == [(1, "unreachable")]


def test_a_death_explains_the_links_that_broke() -> None:
    t = Transcript()
    first, second, third = t.form_world(3)
    t.send(first, LinkBroken(2, "reset"))
    t.send(second, LinkBroken(2, "reset"))
    t.break_session(third)
    t.advance_to(1.5)
    assert fates(t, first) == [(2, "dead", None, None)]
    assert not any(isinstance(one, BrokenLinks) for one in t.read_pushed(second))
    assert t.machine.next_due == 2.0  # when it has been silent for long; nothing else is left


def test_those_who_share_memory_can_do_without_a_link() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    t.send(first, LinkBroken(1, "reset", shares_memory=True))
    answer(t, [second])
    t.advance_to(1.5)
    assert t.read_pushed(first) == []


def test_the_fate_is_kept_for_later_verdicts_and_amended_by_what_is_told_late() -> None:
    t = Transcript()
    first, second = t.form_world(2, pid_namespace=HERE)
    t.break_session(second)
    t.advance_to(0.5)
    assert fates(t, first) == [(1, "dead", None, None)]
    t.ask_now(exit_of(second, -9))
    world = t.machine._jobs.get("j").world
    assert world is not None
    fate = world.members[1].loss
    assert isinstance(fate, AbsentRank)
    assert fate.signal == 9
