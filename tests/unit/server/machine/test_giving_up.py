"""Aborts, cancelled calls and monitored barriers: all ranks get the same news."""

import pytest

from allhands_proto.verdicts import CallCancellation, Verdict
from allhands_server.machine.effects import Aborted, CallCancelled, Probe
from allhands_server.machine.member_messages import Abort, CancelCall, Heartbeat, OpenGroup
from allhands_server.machine.refusals import Refusal, Status
from allhands_server.machine.requests import AbortJob, AwaitVerdict, MonitoredBarrier
from allhands_server.machine.values import Progress
from allhands_server.testing import Transcript


def opened(t: Transcript, sessions: list[int]) -> list[int]:
    for session in sessions:
        t.send(session, OpenGroup("world", tuple(range(len(sessions)))))
    return sessions


# ---------------------------------------------------------------- abort


def test_an_abort_is_told_to_all_others_with_who_and_why() -> None:
    t = Transcript()
    first, second, third = t.form_world(3)
    t.send(second, Abort("", "diverged"))
    expected = [Aborted("", "rank 1 (host host2, pid 1002)", "diverged")]
    assert t.read_pushed(first) == t.read_pushed(third) == expected
    assert t.read_pushed(second) == []


def test_the_abort_of_a_group_is_told_to_its_ranks() -> None:
    t = Transcript()
    first, second, third = t.form_world(3)
    for session in (first, third):
        t.send(session, OpenGroup("pair", (0, 2)))
    t.send(third, Abort("pair", "enough"))
    assert t.read_pushed(first) == [Aborted("pair", "rank 2 (host host3, pid 1003)", "enough")]
    assert t.read_pushed(second) == []


def test_somebody_outside_aborts_a_job() -> None:
    t = Transcript()
    sessions = t.form_world(2)
    assert t.ask_now(AbortJob("j", "me", "tired")) == 2
    for session in sessions:
        assert t.read_pushed(session) == [Aborted("", "me", "tired")]


def test_a_world_that_has_not_formed_is_dismissed_by_an_abort() -> None:
    t = Transcript()
    session = t.join(0, 2)
    assert t.ask_now(AbortJob("j", "me", "tired")) == 1
    end = t.ends[session]
    assert isinstance(end, Refusal)
    assert (end.status, "me: tired" in end.text) == (Status.ABORTED, True)


def test_a_job_that_nobody_is_in_cannot_be_aborted() -> None:
    t = Transcript()
    assert t.ask_refused(AbortJob("j", "me", "tired")).status is Status.NOT_FOUND
    (session,) = t.form_world(1)
    t.break_session(session)
    t.advance_to(0.5)
    assert t.ask_refused(AbortJob("j", "me", "tired")).status is Status.FAILED_PRECONDITION


# ---------------------------------------------------------------- calls


def test_a_call_that_is_given_up_is_told_to_the_others_and_to_who_asks_later() -> None:
    t = Transcript()
    first, second, third = opened(t, t.form_world(3))
    t.send(third, CancelCall("world", 4, "Ctrl-C"))
    who = "rank 2 (host host3, pid 1003)"
    told = [CallCancelled("world", 4, 2, who, "Ctrl-C")]
    assert t.read_pushed(first) == t.read_pushed(second) == told
    assert t.read_pushed(third) == []
    late = t.ask(AwaitVerdict("j", "member1", "world", 4, "barrier"), due=9.0)
    assert t.outcomes[late] == CallCancellation(2, who, "Ctrl-C")
    other = t.ask(AwaitVerdict("j", "member1", "world", 5, "barrier"), due=9.0)
    assert other not in t.outcomes


def test_a_call_that_two_gave_up_is_told_of_once() -> None:
    t = Transcript()
    first, second, third = opened(t, t.form_world(3))
    t.send(third, CancelCall("world", 4, "Ctrl-C"))
    t.send(second, CancelCall("world", 4, "cancelled"))
    assert len(t.read_pushed(first)) == 1


# ---------------------------------------------------------------- monitored barriers


def arrive(t: Transcript, session: int, due: float = 2.0) -> int:
    return t.ask(MonitoredBarrier("j", f"member{session}", "world", 3), due)


def answer(t: Transcript, session: int) -> None:
    for one in t.read_pushed(session):
        assert isinstance(one, Probe)
        t.send(session, Heartbeat(one.probe, (Progress("world", 2, 2, "", 1.0),), "at line 7"))


@pytest.mark.parametrize("last", [0, 1, 2])
def test_a_monitored_barrier_opens_for_all_when_the_last_arrives(last: int) -> None:
    t = Transcript()
    sessions = opened(t, t.form_world(3))
    early = [arrive(t, session) for rank, session in enumerate(sessions) if rank != last]
    assert not any(ticket in t.outcomes for ticket in early)
    late = arrive(t, sessions[last])
    assert [t.outcomes[ticket] for ticket in (*early, late)] == [None] * 3


@pytest.mark.parametrize("missing", [0, 2])
def test_the_verdict_of_a_monitored_barrier_goes_to_all_also_to_who_comes_late(
    missing: int,
) -> None:
    t = Transcript()
    sessions = opened(t, t.form_world(3, window=60.0))
    there = [session for rank, session in enumerate(sessions) if rank != missing]
    impatient, patient = arrive(t, there[0], due=2.0), arrive(t, there[1], due=60.0)
    t.advance_to(1.8)
    answer(t, sessions[missing])
    t.advance_to(2.0)
    verdict = t.outcomes[impatient]
    assert isinstance(verdict, Verdict)
    assert [(one.rank, one.state, one.stack) for one in verdict.absent] == [
        (missing, "busy", "at line 7")
    ]
    assert t.outcomes[patient] == verdict
    t.advance_to(30.0)
    late = arrive(t, sessions[missing], due=90.0)
    assert t.outcomes[late] == verdict


def test_who_gives_up_a_monitored_barrier_has_not_arrived() -> None:
    t = Transcript()
    first, second = opened(t, t.form_world(2))
    t.cancel(arrive(t, first))
    ticket = arrive(t, second)
    assert ticket not in t.outcomes
    arrive(t, first)
    assert t.outcomes[ticket] is None


def test_a_monitored_barrier_opens_though_its_ranks_become_known_only_then() -> None:
    t = Transcript()
    first, second, third = t.form_world(3)
    tickets = [
        t.ask(MonitoredBarrier("j", f"member{session}", "pair", 1), 2.0)
        for session in (first, third)
    ]
    assert not any(ticket in t.outcomes for ticket in tickets)
    t.send(first, OpenGroup("pair", (0, 2)))
    assert [t.outcomes[ticket] for ticket in tickets] == [None, None]
    assert t.read_pushed(second) == []
