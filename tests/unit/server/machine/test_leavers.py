"""Members that leave a large world at once: the others hear of all of them, in few messages."""

from collections.abc import Iterable

import pytest

from allhands_server.machine.effects import (
    Aborted,
    Joined,
    LeaveAccepted,
    MemberLeft,
    MembersLeft,
    Notification,
    WorldFormed,
)
from allhands_server.machine.member_messages import Leave
from allhands_server.machine.requests import AbortJob, ChangeGroup
from allhands_server.machine.values import Progress
from allhands_server.testing import Transcript

SIZE = 400
SMALL = 64
"""Members of a world that are told at once."""
GONE = 300
APART = SIZE / 20_000


def name_leavers(told: Iterable[Notification]) -> list[int]:
    """Return the ranks of whose leaving a member was told, in order."""
    ranks: list[int] = []
    for one in told:
        match one:
            case MemberLeft(rank):
                ranks.append(rank)
            case MembersLeft(gone):
                ranks += [left.rank for left in gone]
    return ranks


def test_when_all_leave_at_once_messages_grow_as_the_world() -> None:
    t = Transcript()
    sessions = t.form_world(SIZE)
    for session in sessions:
        t.send(session, Leave())
    told = [t.read_pushed(session) for session in sessions]
    assert all(LeaveAccepted() in one for one in told)
    assert sum(map(len, told)) < 3 * SIZE + SMALL**2 / 2
    assert t.machine.next_due is None


def test_who_stays_hears_of_all_in_their_order() -> None:
    t = Transcript()
    sessions = t.form_world(SIZE)
    for session in sessions[3:GONE]:
        t.send(session, Leave(progress=(Progress("world", 7, 7),)))
    assert name_leavers(t.read_pushed(sessions[0])) == [3]  # nobody waits for the first
    t.advance_to(APART)
    [told] = t.read_pushed(sessions[0])
    assert isinstance(told, MembersLeft)
    assert name_leavers([told]) == list(range(4, GONE))
    assert {left.progress[0].completed for left in told.gone} == {7}
    assert [left.epoch for left in told.gone] == list(range(3, GONE - 1))
    assert t.read_pushed(sessions[1])[1] is told


def test_in_a_small_world_each_is_told_of_at_once() -> None:
    t = Transcript()
    sessions = t.form_world(SMALL + 1)
    for rank, session in enumerate(sessions[1:], 1):
        t.send(session, Leave())
        assert name_leavers(t.read_pushed(sessions[0])) == [rank]


def test_what_comes_later_is_told_later() -> None:
    t = Transcript()
    sessions = t.form_world(SIZE)
    for session in sessions[1:4]:
        t.send(session, Leave())
    t.ask_now(AbortJob("j", "me", "enough"))
    told = t.read_pushed(sessions[0])
    assert name_leavers(told[:2]) == [1, 2, 3]
    assert isinstance(told[2], Aborted)
    t.advance_to(1.0)
    assert t.read_pushed(sessions[0]) == []


def test_who_resumes_meanwhile_hears_of_all() -> None:
    t = Transcript()
    sessions = [t.join(rank, SIZE) for rank in range(SIZE)]
    joined = t.read_pushed(sessions[0])[0]
    assert isinstance(joined, Joined)
    for session in sessions[1:5]:
        t.send(session, Leave())
    t.break_session(sessions[0])
    again = t.resume(joined)
    assert name_leavers(t.read_pushed(again)) == [1, 2, 3, 4]


def test_a_newcomer_hears_of_those_alone_who_leave_after_it_has_come() -> None:
    t = Transcript()
    sessions = t.form_world(SIZE, elastic=True)
    newcomer = t.join(elastic=True)
    for session in sessions[:5]:
        t.send(session, Leave())
    for session in sessions[5:]:
        t.ask(ChangeGroup("j", f"member{session}", "world", "grow", wanted=1))
    t.send(sessions[5], Leave())
    t.send(sessions[6], Leave())
    t.advance_to(1.0)
    told = t.read_pushed(newcomer)
    assert any(isinstance(one, WorldFormed) for one in told)
    assert name_leavers(told) == [5, 6]
    assert name_leavers(t.read_pushed(sessions[7])) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("pause", [0.0, APART / 2, 2 * APART])
def test_notices_are_apart_from_each_other(pause: float) -> None:
    t = Transcript()
    sessions = t.form_world(SIZE)
    now = 0.0
    for session in sessions[1:40]:
        t.send(session, Leave())
        now += pause
        t.advance_to(now)
    t.advance_to(now + APART)
    told = t.read_pushed(sessions[0])
    assert name_leavers(told) == list(range(1, 40))
    assert len(told) <= 3 + now / APART
