"""Post-mortem of a world: failures in order, and records of members."""

import pytest

from allhands_proto.statuses import FailureStatus
from allhands_server.machine import idle_jobs
from allhands_server.machine.member_messages import Heartbeat, LastReport, Leave, OpenGroup
from allhands_server.machine.requests import (
    AbortJob,
    CollectReports,
    DeleteJob,
    DescribeJob,
    ListJobs,
    ReportExit,
)
from allhands_server.machine.values import JobView, MemberReport, Progress
from allhands_server.machine.world import postmortem
from allhands_server.machine.world.postmortem import LARGEST_REPORT, limit_report
from allhands_server.testing import Transcript


def at(sequence: int, completed: int, operation: str = "", group: str = "world") -> Progress:
    return Progress(group, sequence, completed, operation)


def formed(t: Transcript, size: int, job: str = "j") -> list[int]:
    """Form a world with the group of all opened by every member."""
    sessions = t.form_world(size, job=job)
    for session in sessions:
        t.send(session, OpenGroup("world", tuple(range(size))))
    return sessions


def seen(t: Transcript, job: str = "j") -> JobView:
    return t.ask_now(DescribeJob(job))


def failures(t: Transcript) -> list[tuple[int, str]]:
    return [(one.rank, one.state) for one in seen(t).failures]


def kept(t: Transcript, job: str = "j") -> list[bytes]:
    return [one.report for one in t.ask_now(CollectReports(job, 10))]


def test_a_job_that_all_have_left_has_ended_well() -> None:
    t = Transcript()
    for session in formed(t, 2):
        t.advance_to(t.now + 1.0)
        t.send(session, Leave())
    t.advance_to(10.0)
    found = seen(t)
    assert (found.state, found.failures, found.ended) == ("ended", (), 8.0)
    assert [one.gone for one in found.members] == [9.0, 8.0]


def test_a_job_that_runs_has_not_ended() -> None:
    t = Transcript()
    formed(t, 2)
    assert seen(t).ended is None
    assert [one.gone for one in seen(t).members] == [None, None]


def test_the_first_loss_comes_first_and_says_how_its_process_ended_as_soon_as_that_is_known() -> (
    None
):
    t = Transcript()
    first, second = t.form_world(2, pid_namespace="s")
    t.break_session(second)
    t.advance_to(1.0)
    t.break_session(first)
    t.advance_to(3.0)
    told = seen(t).failures
    assert [(one.rank, one.state) for one in told] == [(1, "dead"), (0, "dead")]
    assert told[0].seconds == 2.5
    t.ask_now(ReportExit("j", "s", 1000 + second, f"born{second}", -9))
    assert "killed by SIGKILL" in seen(t).failures[0].text


def test_who_leaves_with_an_error_is_named_with_it() -> None:
    t = Transcript()
    first, second = formed(t, 2)
    t.send(second, Leave((at(3, 3),), "ValueError: no", "Traceback ...", aborts=True))
    t.send(first, Leave((at(4, 3),), "GroupAborted: rank 1"))
    one, two = seen(t).failures
    assert one == FailureStatus(
        1,
        "left",
        "rank 1 (host host2, pid 1002) left the job because of ValueError: no",
        0.0,
        "Traceback ...",
    )
    assert two.rank == 0


def test_who_left_before_a_call_in_which_others_failed_comes_first() -> None:
    t = Transcript()
    first, second, third = formed(t, 3)
    t.send(third, Leave((at(20, 20),)))
    t.send(first, Leave((at(21, 20),), "PeerFailed: rank 2 left"))
    t.send(second, Leave((at(21, 20),), "PeerFailed: rank 2 left"))
    assert failures(t) == [(2, "left"), (0, "left"), (1, "left")]
    assert "after #20 of group 'world', in which rank 0" in seen(t).failures[0].text


def test_who_left_after_the_same_calls_is_not_to_blame() -> None:
    t = Transcript()
    first, second = formed(t, 2)
    t.send(second, Leave((at(20, 20),)))
    t.send(first, Leave((at(20, 20),), "OSError: disk full"))
    assert failures(t) == [(0, "left")]


def test_an_abort_from_outside_comes_first() -> None:
    t = Transcript()
    first, second = formed(t, 2)
    t.ask_now(AbortJob("j", "me", "tired"))
    for session in (first, second):
        t.send(session, Leave((), "GroupAborted: me"))
    assert failures(t) == [(-1, "aborted"), (0, "left"), (1, "left")]


def test_failures_are_bounded() -> None:
    t = Transcript()
    for session in formed(t, 40):
        t.send(session, Leave((), "x" * 10_000, "y" * 10_000))
    found = seen(t).failures
    assert len(found) == postmortem.MOST_FAILURES
    assert all(len(one.text) <= postmortem.LONGEST_TEXT for one in found)


def test_where_a_member_was_stands_still_once_it_is_gone() -> None:
    t = Transcript()
    first, _ = formed(t, 2)
    t.send(first, Heartbeat(progress=(Progress("world", 4, 3, "barrier", 1.0),)))
    t.advance_to(2.0)
    t.send(first, Leave())
    t.advance_to(50.0)
    [progress] = seen(t).members[0].progress
    assert progress.elapsed == 3.0


def test_the_last_report_of_each_member_is_kept_after_the_end() -> None:
    t = Transcript()
    first, second = formed(t, 2)
    t.send(first, LastReport(b"at the failure"))
    t.break_session(first)
    t.advance_to(1.0)
    t.send(second, LastReport(b"at the failure"))
    t.send(second, Leave(report=b"at the end"))
    assert t.ask_now(CollectReports("j", 10)) == (
        MemberReport(0, b"at the failure", "it is lost: its session broke"),
        MemberReport(1, b"at the end", "it is left"),
    )


def test_the_reports_of_a_job_are_gone_with_its_next_world() -> None:
    t = Transcript()
    (session,) = formed(t, 1)
    t.send(session, Leave((), "boom", report=b"x"))
    (session,) = formed(t, 1)
    t.send(session, Leave())
    assert kept(t) == [b""]
    assert seen(t).failures == ()


def test_a_report_that_is_too_large_is_not_kept() -> None:
    t = Transcript()
    first, second = formed(t, 2)
    t.send(first, Leave(report=bytes(LARGEST_REPORT + 1)))
    t.send(second, Leave(report=bytes(LARGEST_REPORT)))
    assert [len(one) for one in kept(t)] == [0, LARGEST_REPORT]


def test_reports_of_one_world_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postmortem, "LARGEST_OF_WORLD", 25)
    t = Transcript()
    sessions = formed(t, 4)
    for session in sessions:
        t.send(session, LastReport(bytes(10)))  # of two there is no room
    t.send(sessions[0], Leave(report=bytes(5)))
    for session in sessions[1:]:
        t.send(session, Leave())
    assert [len(one) for one in kept(t)] == [5, 10, 0, 0]


def test_members_are_told_how_much_is_kept_of_them() -> None:
    assert limit_report(0) == limit_report(2) == 64 << 10
    assert limit_report(1024) == 16 << 10


def ended(t: Transcript, job: str, size: int = 1, nbytes: int = 10) -> None:
    for session in formed(t, size, job):
        t.send(session, Leave(report=bytes(nbytes)))


def test_of_the_oldest_ended_jobs_reports_are_dropped_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(idle_jobs, "IDLE_REPORTS_KEPT", 25)
    t = Transcript()
    for number in range(4):
        ended(t, f"run{number}")
    assert [len(kept(t, f"run{number}")[0]) for number in range(4)] == [0, 0, 10, 10]
    t.ask_now(DeleteJob("run3", "me"))
    ended(t, "run4")
    assert [len(kept(t, f"run{number}")[0]) for number in (0, 1, 2, 4)] == [0, 0, 10, 10]


def test_the_oldest_ended_jobs_are_forgotten_where_they_have_many_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(idle_jobs, "IDLE_MEMBERS_KEPT", 5)
    t = Transcript()
    for number in range(4):
        ended(t, f"run{number}", size=2)
    assert [view.job for view in t.ask_now(ListJobs())] == ["run2", "run3"]
    ended(t, "large", size=7)
    assert [view.job for view in t.ask_now(ListJobs())] == ["large"]
