"""How members go from a world: silence, broken sessions, links as evidence, leaving."""

from collections.abc import Iterator

import pytest

from allhands_server.machine.effects import LeaveAccepted, MemberLeft, MemberLost, Probe
from allhands_server.machine.member_messages import Heartbeat, Leave, LinkBroken
from allhands_server.machine.refusals import Status
from allhands_server.machine.requests import DescribeJob
from allhands_server.machine.values import Presence, Progress
from allhands_server.testing import Transcript

BROKE = "its session broke"


def beats(t: Transcript, sessions: list[int], until: float) -> None:
    """Send members' heartbeats each second."""
    while t.now < until:
        t.advance_to(t.now + 1.0)
        for session in sessions:
            t.send(session, Heartbeat())


def lost(t: Transcript, session: int) -> Iterator[MemberLost]:
    return (one for one in t.read_pushed(session) if isinstance(one, MemberLost))


def test_who_is_silent_for_the_window_is_lost_to_all_others() -> None:
    t = Transcript()
    first, second, silent = t.form_world(3)
    t.advance_to(0.5)
    t.send(silent, Heartbeat())
    beats(t, [first, second], until=5.5)
    [told] = lost(t, first)
    assert told.reason == "no heartbeat for 5.0 s"
    assert (told.rank, told.host, told.pid, told.epoch) == (2, "host3", 1003, 2)
    assert list(lost(t, second)) == [told]
    refusal = t.ends[silent]
    assert refusal is not None
    assert refusal.status is Status.ABORTED
    assert "no heartbeat for 5.0 s" in refusal.text


def test_who_is_silent_for_less_than_the_window_stays() -> None:
    t = Transcript()
    t.form_world(1, window=1.0)
    for _ in range(10):
        t.advance_to(t.now + 0.99)
        t.send(1, Heartbeat())
    assert t.ends == {}


def test_who_is_silent_is_probed_before_it_is_judged() -> None:
    t = Transcript()
    first, session = t.form_world(2)
    t.advance_to(1.99)
    assert t.read_pushed(session) == []
    t.advance_to(2.0)
    [probe] = t.read_pushed(session)
    assert isinstance(probe, Probe)
    beats(t, [first], until=4.0)
    t.advance_to(4.9)
    t.send(session, Heartbeat(probe.probe))
    beats(t, [first], until=8.9)
    t.advance_to(9.8)
    assert session not in t.ends
    t.advance_to(9.91)
    assert session in t.ends


def test_a_heartbeat_in_the_instant_of_the_judgement_still_counts() -> None:
    t = Transcript()
    (session,) = t.form_world(1)
    t.advance_to(4.999)
    t.now = 5.0
    t.send(session, Heartbeat())
    assert session not in t.ends


def test_nobody_is_judged_for_the_absence_of_the_coordinator_itself() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    t.oversleep(50.0)
    assert t.ends == {}
    assert t.read_pushed(first) == []  # what it said may lie unread
    t.advance_to(50.5)
    assert isinstance(t.read_pushed(first)[-1], Probe)
    beats(t, [first], until=112.0)
    assert list(t.ends) == [second]


def test_an_absence_between_the_probe_and_the_judgement_is_forgiven_as_well() -> None:
    t = Transcript()
    (session,) = t.form_world(1)
    t.advance_to(3.0)
    t.oversleep(60.0)
    assert t.ends == {}
    t.advance_to(61.0)
    assert session in t.ends


def test_a_session_that_breaks_is_lost_after_the_grace() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    t.advance_to(1.0)
    t.break_session(second)
    t.advance_to(1.49)
    assert t.read_pushed(first) == []
    t.advance_to(1.5)
    assert [(one.rank, one.reason, one.epoch) for one in lost(t, first)] == [(1, BROKE, 2)]


def test_a_broken_session_and_a_broken_link_make_a_loss_at_once() -> None:
    t = Transcript()
    first, second, third = t.form_world(3)
    t.break_session(third)
    t.send(first, LinkBroken(2, "reset"))
    assert [one.rank for one in lost(t, second)] == [2]
    assert [one.reason for one in lost(t, first)] == [f"{BROKE}, and a link to it"]
    t.advance_to(9.0)
    assert len(list(lost(t, first))) == 0


def test_a_link_that_broke_before_the_session_counts_as_well() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    t.send(first, LinkBroken(1, "reset"))
    t.break_session(second)
    assert [one.rank for one in lost(t, first)] == [1]


def test_a_broken_link_to_a_member_that_is_alive_only_probes_it() -> None:
    t = Transcript()
    first, second, third = t.form_world(3)
    t.send(first, LinkBroken(1, "reset"))
    assert [type(one) for one in t.read_pushed(second)] == [Probe]
    assert t.read_pushed(first) == t.read_pushed(third) == []
    beats(t, [first, second, third], until=20.0)
    assert t.ends == {}


@pytest.mark.parametrize("rank", [0, 7, -1])
def test_a_broken_link_to_oneself_or_to_nobody_means_nothing(rank: int) -> None:
    t = Transcript()
    first, second = t.form_world(2)
    t.send(first, LinkBroken(rank, "reset"))
    assert t.read_pushed(first) == t.read_pushed(second) == []


def test_every_loss_begins_an_epoch() -> None:
    t = Transcript()
    first, second, third = t.form_world(3)
    t.break_session(second)
    t.break_session(third)
    t.advance_to(0.5)
    assert [(one.rank, one.epoch) for one in lost(t, first)] == [(1, 2), (2, 3)]
    assert t.ask_now(DescribeJob("j")).epoch == 3
    assert t.ask_now(DescribeJob("j")).state == "degraded"


def test_who_leaves_is_let_go_and_the_others_hear_what_it_had_completed() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    progress = (Progress("world", 7, 7),)
    t.send(second, Leave(progress, "ValueError: no"))
    assert t.read_pushed(second) == [LeaveAccepted()]
    assert t.ends[second] is None
    assert t.read_pushed(first) == [MemberLeft(1, "host2", 1002, progress, "ValueError: no", 2)]
    t.break_session(second)
    t.advance_to(4.0)
    assert [type(one) for one in t.read_pushed(first)] == [Probe]


def test_the_last_to_leave_ends_the_world_without_a_new_epoch() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    t.send(first, Leave())
    t.send(second, Leave())
    seen = t.ask_now(DescribeJob("j"))
    assert (seen.state, seen.epoch) == ("ended", 2)
    assert [member.presence for member in seen.members] == [Presence.LEFT] * 2
    assert t.log[-1] == "job j: ended"
    assert t.machine.next_due is None


def test_the_last_to_be_lost_ends_the_world() -> None:
    t = Transcript()
    (only,) = t.form_world(1)
    t.break_session(only)
    t.advance_to(0.5)
    assert t.log[-2:] == [
        "job j: rank 0 (host host1, pid 1001) is lost: its session broke; epoch 2",
        "job j: ended",
    ]
    assert t.machine.next_due is None


def test_what_a_session_says_after_its_end_means_nothing() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    t.send(second, Leave())
    t.read_pushed(first)
    t.send(second, LinkBroken(0, "late"))
    t.send(second, Leave())
    assert t.read_pushed(first) == []
    assert t.ask_now(DescribeJob("j")).epoch == 2


def test_a_member_that_sends_garbage_is_shown_out_and_lost() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    t.send(second, Heartbeat(0, (Progress("\x00", 1, 0),)))
    refusal = t.ends[second]
    assert refusal is not None
    assert refusal.status is Status.INVALID_ARGUMENT
    t.break_session(second)
    t.advance_to(0.5)
    assert [one.rank for one in lost(t, first)] == [1]
