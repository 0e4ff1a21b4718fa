"""Formation of a world: ranks given and assigned, sizes agreed, refusals with both parties."""

import pytest

from allhands_server.machine import refused_callers
from allhands_server.machine.effects import (
    CallerRefused,
    Joined,
    LeaveAccepted,
    Probe,
    WorldFormed,
)
from allhands_server.machine.events import AuthenticationFailed
from allhands_server.machine.member_messages import Heartbeat, Leave
from allhands_server.machine.refusals import Refusal, Status
from allhands_server.machine.requests import DescribeJob, ListEvents
from allhands_server.testing import Transcript


def joined(t: Transcript, session: int) -> Joined:
    found = t.read_pushed(session)[0]
    assert isinstance(found, Joined)
    return found


def formed(t: Transcript, session: int) -> WorldFormed:
    found = t.read_pushed(session)[-1]
    assert isinstance(found, WorldFormed)
    return found


def why(t: Transcript, session: int) -> Refusal:
    refusal = t.ends[session]
    assert refusal is not None
    return refusal


def test_a_member_is_introduced_at_once() -> None:
    t = Transcript()
    session = t.join(1, 3, window=10.0)
    assert t.read_pushed(session) == [
        Joined(
            member_id="member1",
            rank=1,
            world_size=3,
            incarnation="incarnation1",
            secret=b"\x01" * 32,
            heartbeat_window=10.0,
            heartbeat_interval=1.0,
            address="127.0.0.1:5001",
            report_nbytes=64 << 10,
        )
    ]


def test_ranks_that_went_before_the_world_formed_are_told_from_those_that_never_came() -> None:
    t = Transcript()
    t.join(0, 4)
    for rank in (3, 1):
        t.break_session(t.join(rank, 4))
    assert t.ask_now(DescribeJob("j")).gave_up == (1, 3)
    t.join(3, 4)
    assert t.ask_now(DescribeJob("j")).gave_up == (1,)


def test_the_last_member_that_is_missing_forms_the_world() -> None:
    t = Transcript()
    sessions = [t.join(1, 2), t.join(0, 2)]
    one, other = (formed(t, session) for session in sessions)
    assert one == other
    assert (one.epoch, one.world_size) == (1, 2)
    assert [(member.rank, member.pid) for member in one.members] == [(0, 1002), (1, 1001)]
    assert t.log == ["job j: epoch 1 opened, 2 members"]
    assert t.ask_now(DescribeJob("j")).state == "running"


def test_a_world_of_one_forms_at_once() -> None:
    t = Transcript()
    assert [type(one) for one in t.read_pushed(t.join(0, 1))] == [Joined, WorldFormed]


def test_all_members_of_an_incarnation_share_one_secret() -> None:
    t = Transcript()
    one, other = joined(t, t.join(0, 2)), joined(t, t.join(1, 2))
    assert one.secret == other.secret
    assert one.incarnation == other.incarnation
    assert one.member_id != other.member_id


def test_ranks_are_assigned_from_the_lowest_free_one() -> None:
    t = Transcript()
    t.join(1, 4)
    assert [joined(t, t.join()).rank for _ in range(3)] == [0, 2, 3]


def test_a_world_forms_when_the_last_member_brings_the_size() -> None:
    t = Transcript()
    first = t.join(0)
    assert joined(t, first).world_size == 0
    t.join(1, 2)
    assert formed(t, first).world_size == 2


def test_a_claim_beats_an_assignment_while_the_world_forms() -> None:
    t = Transcript()
    assigned = t.join()
    claimant = t.join(0, 2)
    assert joined(t, claimant).rank == 0
    refusal = why(t, assigned)
    assert refusal.status is Status.UNAVAILABLE
    assert "host host1, pid 1001" in refusal.text
    assert "host host2, pid 1002" in refusal.text
    assert joined(t, t.join()).rank == 1
    assert t.ask_now(DescribeJob("j")).state == "running"


def test_a_rank_that_is_taken_is_refused_naming_both_parties() -> None:
    t = Transcript()
    t.join(1, 3, label="first")
    refusal = why(t, t.join(1, 3, label="second"))
    assert refusal.status is Status.ALREADY_EXISTS
    assert "host host2, pid 1002, label 'second' claims it" in refusal.text
    assert "rank 1 (host host1, pid 1001, label 'first') has joined with it" in refusal.text
    assert t.log == [f"refused to take in a worker: {refusal.text}"]


def test_another_world_size_is_refused_naming_both_parties() -> None:
    t = Transcript()
    t.join(0, 2)
    refusal = why(t, t.join(1, 3))
    assert refusal.status is Status.FAILED_PRECONDITION
    assert "rank 1 (host host2, pid 1002) brings world size 3" in refusal.text
    assert "rank 0 (host host1, pid 1001) brought 2" in refusal.text


@pytest.mark.parametrize("size", [2, 3])
def test_a_world_size_without_room_for_who_is_there_is_refused(size: int) -> None:
    t = Transcript()
    t.join(3)
    refusal = why(t, t.join(0, size))
    assert refusal.status is Status.FAILED_PRECONDITION
    assert "no place for rank 3 (host host1, pid 1001)" in refusal.text


def test_who_brings_a_size_that_leaves_no_rank_for_itself_is_refused() -> None:
    t = Transcript()
    t.join(0)
    refusal = why(t, t.join(-1, 1))
    assert refusal.status is Status.FAILED_PRECONDITION
    assert "no place left beside rank 0 (host host1, pid 1001)" in refusal.text
    assert formed(t, t.join(-1, 2)).world_size == 2


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-2, 2), (0, -1), (2_000_000, 0)])
def test_a_rank_outside_its_own_world_is_refused(rank: int, size: int) -> None:
    t = Transcript()
    assert why(t, t.join(rank, size)).status is Status.INVALID_ARGUMENT


def test_a_rank_outside_the_agreed_world_is_refused_naming_who_brought_the_size() -> None:
    t = Transcript()
    t.join(0, 2)
    refusal = why(t, t.join(2))
    assert refusal.status is Status.INVALID_ARGUMENT
    assert "rank 0 (host host1, pid 1001) brought world size 2" in refusal.text


def test_a_running_world_takes_in_nobody() -> None:
    t = Transcript()
    t.form_world(2)
    refusal = why(t, t.join())
    assert refusal.status is Status.FAILED_PRECONDITION
    assert "rank 0 (host host1, pid 1001), rank 1 (host host2, pid 1002)" in refusal.text
    assert "another job name" in refusal.text
    assert why(t, t.join(1, 2)).status is Status.ALREADY_EXISTS


def test_a_degraded_world_takes_in_nobody_also_not_as_the_rank_that_is_missing() -> None:
    t = Transcript()
    sessions = t.form_world(2)
    t.send(sessions[1], Leave())
    refusal = why(t, t.join(1, 2))
    assert refusal.status is Status.FAILED_PRECONDITION
    assert "of them 1 left" in refusal.text


def test_a_rank_that_has_left_may_join_the_next_world_once_the_others_have_left() -> None:
    t = Transcript()
    sessions = t.form_world(3)
    t.send(sessions[1], Leave())
    for rank in (1, -1):
        assert why(t, t.join(rank, 3)).retry_after, "the others of its world are about to leave"
    assert why(t, t.join(2, 3)).retry_after is None
    for rank in (0, 2):
        t.send(sessions[rank], Leave())
    later = [t.join(rank, 3) for rank in (1, 0, 2)]
    assert [formed(t, one).world_size for one in later] == [3, 3, 3]


def test_who_tries_again_and_again_is_in_the_log_and_among_the_events_once() -> None:
    t = Transcript()
    sessions = t.form_world(2)
    t.send(sessions[1], Leave())
    waiting = t.join(1, 2)
    for _ in range(10):
        assert why(t, t.join(1, 2, process=waiting)).retry_after
    other = t.join(1, 2)
    refused = [one.text for one in t.ask_now(ListEvents("j")) if one.kind == "refused"]
    assert [
        f"pid {1000 + one} was refused" in text
        for one, text in zip((waiting, other), refused, strict=True)
    ] == [True, True]
    assert len([line for line in t.log if "of them 1 left" in line]) == 2


def test_who_replaces_a_rank_that_was_lost_is_not_to_try_again() -> None:
    t = Transcript()
    sessions = t.form_world(2)
    t.break_session(sessions[1])
    t.advance_to(1)
    assert why(t, t.join(1, 2)).retry_after is None


def test_a_rank_is_free_again_when_its_session_breaks_while_the_world_forms() -> None:
    t = Transcript()
    other = t.join(1, 3)
    t.break_session(t.join(0, 3))
    assert joined(t, t.join(0, 3)).rank == 0
    assert len(t.read_pushed(other)) == 1
    assert t.log == []


def test_the_size_is_open_again_when_who_brought_it_has_gone() -> None:
    t = Transcript()
    t.join(0)
    t.break_session(t.join(1, 3))
    assert t.ask_now(DescribeJob("j")).world_size == 0
    assert isinstance(t.read_pushed(t.join(1, 2))[-1], WorldFormed)


def test_a_worker_that_leaves_while_the_world_forms_is_let_go() -> None:
    t = Transcript()
    leaver = t.join(0, 3)
    other = t.join(1, 3)
    t.send(leaver, Leave())
    assert t.read_pushed(leaver)[-1] == LeaveAccepted()
    assert t.ends[leaver] is None
    assert len(t.read_pushed(other)) == 1
    assert joined(t, t.join(0, 3)).rank == 0


def test_who_joins_and_beats_only_when_probed_stays_while_the_world_forms() -> None:
    t = Transcript()
    session = t.join(0, 2)
    for second in range(1, 61):
        t.advance_to(float(second))
        for one in t.read_pushed(session):
            if isinstance(one, Probe):
                t.send(session, Heartbeat(one.probe))
    assert session not in t.ends


def test_who_falls_silent_while_the_world_forms_is_dropped_and_its_rank_is_free() -> None:
    t = Transcript()
    session = t.join(0, 2)
    t.advance_to(5.0)
    refusal = why(t, session)
    assert refusal.status is Status.ABORTED
    assert "no heartbeat for 5.0 s" in refusal.text
    assert joined(t, t.join(0, 2)).rank == 0


@pytest.mark.parametrize("window", [0.1, 4000.0, -1.0, float("nan")])
def test_a_heartbeat_window_out_of_bounds_is_refused(window: float) -> None:
    t = Transcript()
    assert why(t, t.join(0, 1, window=window)).status is Status.INVALID_ARGUMENT


def test_the_first_join_sets_the_heartbeat_window() -> None:
    t = Transcript()
    t.join(0, 2, window=1.0)
    assert joined(t, t.join(1, 2, window=9.0)).heartbeat_window == 1.0


def test_a_label_that_would_garble_a_terminal_is_refused() -> None:
    t = Transcript()
    assert why(t, t.join(0, 1, label="\x1b[2J")).status is Status.INVALID_ARGUMENT


# ---------------------------------------------------------------- callers without the token


def test_who_waits_for_a_world_hears_of_callers_without_the_token() -> None:
    t = Transcript()
    early, other = t.join(0, 2), t.join(0, 2, job="other")
    complete = t.form_world(1, job="complete")[0]
    for session in (early, other):
        t.read_pushed(session)
    t.handle(AuthenticationFailed("10.0.0.2", "wrong token"))
    refused = CallerRefused("10.0.0.2", "wrong token")
    assert [t.read_pushed(one) for one in (early, other, complete)] == [[refused], [refused], []]


def test_who_joins_later_hears_of_those_of_the_last_minute() -> None:
    t = Transcript()
    t.handle(AuthenticationFailed("10.0.0.2", "wrong token"))
    assert t.read_pushed(t.join(0, 3))[1:] == [CallerRefused("10.0.0.2", "wrong token")]
    t.advance_to(refused_callers.REMEMBERED_SECONDS + 1)
    assert t.read_pushed(t.join(1, 3))[1:] == []


def test_a_caller_that_tries_again_and_again_is_not_told_each_time() -> None:
    t = Transcript()
    session = t.join(0, 2)
    t.read_pushed(session)
    for _ in range(100):
        t.handle(AuthenticationFailed("10.0.0.2", "wrong token"))
    assert len(t.read_pushed(session)) == 1
    t.handle(AuthenticationFailed("10.0.0.2", "no token"))
    assert len(t.read_pushed(session)) == 1
    t.advance_to(refused_callers.AGAIN_SECONDS + 1)
    t.send(session, Heartbeat(0, ()))
    t.handle(AuthenticationFailed("10.0.0.2", "no token"))
    assert len(t.read_pushed(session)) >= 1


def test_callers_of_many_addresses_are_told_a_few_at_a_time() -> None:
    t = Transcript()
    session = t.join(0, 2, window=3600)
    t.read_pushed(session)
    for round_ in range(2):
        for number in range(1000):
            t.handle(
                AuthenticationFailed(f"10.{round_}.{number // 256}.{number % 256}", "wrong token")
            )
        refused = [one for one in t.read_pushed(session) if isinstance(one, CallerRefused)]
        assert len(refused) == refused_callers.MOST
        t.advance_to(t.now + refused_callers.REMEMBERED_SECONDS + 1)
