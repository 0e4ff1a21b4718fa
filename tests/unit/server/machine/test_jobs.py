"""The life of jobs: incarnations, post-mortems, expiry, draining."""

import pytest

from allhands_proto.statuses import GroupStatus
from allhands_server.machine import idle_jobs
from allhands_server.machine.changes import KeyPut
from allhands_server.machine.effects import Draining, Joined, WorldFormed
from allhands_server.machine.events import Drain
from allhands_server.machine.member_messages import CloseGroup, Heartbeat, Leave, OpenGroup
from allhands_server.machine.refusals import Refusal, Status
from allhands_server.machine.requests import Barrier, ChangeGroup, DeleteJob, DescribeJob, ListJobs
from allhands_server.machine.store.keys import Count, Delete, Get, Set
from allhands_server.machine.store.queues import QueueLength, QueuePop, QueuePush
from allhands_server.machine.values import Progress
from allhands_server.testing import Transcript


def run_once(t: Transcript, job: str = "j") -> None:
    for session in t.form_world(1, job=job):
        t.send(session, Leave())


def names(t: Transcript) -> list[str]:
    return [view.job for view in t.ask_now(ListJobs())]


def test_keys_set_before_the_first_join_are_kept_for_the_first_world() -> None:
    t = Transcript()
    t.ask_now(Set("j", "k", b"early"))
    assert t.ask_now(DescribeJob("j")).state == "empty"
    t.form_world(1)
    assert t.ask_now(Get("j", "k")).value == b"early"


def test_keys_stay_readable_after_the_end_until_the_next_world_begins() -> None:
    t = Transcript()
    t.ask_now(Set("j", "k", b"v"))
    run_once(t)
    assert t.ask_now(Get("j", "k")).value == b"v"
    t.join(0, 2)
    assert t.ask_refused(Get("j", "k")).status is Status.NOT_FOUND
    assert t.ask_now(Count("j")) == 0


def test_queues_belong_to_the_first_world_and_end_with_the_next() -> None:
    t = Transcript()
    t.ask_now(QueuePush("j", "q", b"early"))
    run_once(t)
    assert t.ask_now(QueueLength("j", "q")) == 1
    t.join(0, 2)
    assert t.ask_now(QueueLength("j", "q")) == 0


def test_keys_outlast_a_world_that_never_formed() -> None:
    t = Transcript()
    t.ask_now(Set("j", "k", b"v"))
    t.break_session(t.join(0, 2))
    t.join(0, 2)
    assert t.ask_now(Get("j", "k")).value == b"v"


def test_who_waits_over_the_end_of_a_world_is_answered_by_the_next_one() -> None:
    t = Transcript()
    run_once(t)
    waiting = t.ask(Get("j", "k", wait=True))
    t.form_world(1)
    t.ask_now(Set("j", "k", b"new"))
    assert t.outcomes[waiting] == KeyPut("j", "k", b"new", 1, 1, 1)


def test_a_new_world_has_a_new_incarnation_and_a_higher_epoch() -> None:
    t = Transcript()
    run_once(t)
    first = t.ask_now(DescribeJob("j"))
    second, formed = t.read_pushed(t.join(0, 1))
    assert isinstance(second, Joined)
    assert isinstance(formed, WorldFormed)
    assert second.incarnation not in ("", first.incarnation)
    assert second.secret != b"\x01" * 32
    assert formed.epoch > first.epoch


def test_a_new_world_may_have_another_size_and_heartbeat_window() -> None:
    t = Transcript()
    t.form_world(1, window=1.0)
    t.send(1, Leave())
    t.form_world(3, window=2.0)
    seen = t.ask_now(DescribeJob("j"))
    assert (seen.world_size, seen.heartbeat_window, seen.state) == (3, 2.0, "running")


def test_a_worker_need_not_wait_for_the_grace_of_a_world_whose_sessions_are_all_broken() -> None:
    t = Transcript()
    for session in t.form_world(2):
        t.break_session(session)
    assert t.ask_now(DescribeJob("j")).state == "running"
    t.form_world(2)
    seen = t.ask_now(DescribeJob("j"))
    assert (seen.state, seen.incarnation) == ("running", "incarnation3")
    assert t.log.count("job j: ended") == 1
    for _ in range(5):
        t.advance_to(t.now + 1.0)
        t.send(3, Heartbeat())
        t.send(4, Heartbeat())
    assert t.ask_now(DescribeJob("j")).state == "running"


def test_barriers_count_from_the_start_in_a_new_world() -> None:
    t = Transcript()
    assert t.ask_now(Barrier("j", "b", "a", ("a",))) == 1
    run_once(t)
    assert t.ask_now(Barrier("j", "b", "a", ("a",))) == 2
    t.form_world(1)
    assert t.ask_now(Barrier("j", "b", "a", ("a",))) == 1


def test_a_job_shows_its_members_and_how_far_they_are() -> None:
    t = Transcript()
    first, _ = t.form_world(2)
    t.advance_to(1.0)
    t.send(first, Heartbeat(0, (Progress("world", 4, 3, "all_reduce", 0.5),)))
    t.advance_to(3.0)
    seen = t.ask_now(DescribeJob("j"))
    assert (seen.state, seen.world_size, seen.heartbeat_window) == ("running", 2, 5.0)
    member = seen.members[0]
    assert (member.rank, member.host, member.pid, member.last_heartbeat) == (0, "host1", 1001, 2.0)
    assert member.progress == (Progress("world", 4, 3, "all_reduce", 2.5),)
    assert seen.members[1].last_heartbeat == 3.0


def test_a_job_shows_its_groups_until_the_last_member_has_closed_them() -> None:
    t = Transcript()
    first, second, third = t.form_world(3)
    t.send(first, OpenGroup("pair", (0, 1)))
    t.send(second, OpenGroup("pair", (0, 1)))
    t.send(third, OpenGroup("all", (0, 1, 2)))
    assert t.ask_now(DescribeJob("j")).groups == (
        GroupStatus("all", (0, 1, 2)),
        GroupStatus("pair", (0, 1)),
    )
    t.send(first, CloseGroup("pair"))
    assert len(t.ask_now(DescribeJob("j")).groups) == 2
    t.send(second, CloseGroup("pair"))
    assert t.ask_now(DescribeJob("j")).groups == (GroupStatus("all", (0, 1, 2)),)


def test_a_job_that_is_not_there_is_refused_naming_those_that_are() -> None:
    t = Transcript()
    t.join(0, 2, job="train")
    refusal = t.ask_refused(DescribeJob("trian"))
    assert refusal.status is Status.NOT_FOUND
    assert refusal.text == "there is no job 'trian'; jobs here: 'train'"


def test_looking_does_not_make_a_job() -> None:
    t = Transcript()
    t.ask_refused(Get("j", "k"))
    t.ask_now(Count("j"))
    t.cancel(t.ask(Get("j", "k", wait=True)))
    t.break_session(t.join(0, 2))
    t.ask(Barrier("j", "b", "a", ("a", "b")), due=1.0)
    t.advance_to(1.0)
    assert names(t) == []


def test_jobs_are_listed_by_name() -> None:
    t = Transcript()
    for job in "bca":
        t.join(0, 2, job=job)
    assert names(t) == ["a", "b", "c"]


def test_the_oldest_ended_jobs_are_forgotten_and_the_live_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(idle_jobs, "IDLE_JOBS_KEPT", 3)
    t = Transcript()
    t.form_world(1, job="live")
    t.ask_now(Set("keys", "k", b""))
    for number in range(5):
        run_once(t, f"run{number}")
    assert names(t) == ["keys", "live", "run2", "run3", "run4"]


def test_a_job_without_members_is_gone_with_its_last_key() -> None:
    t = Transcript()
    t.ask_now(Set("mistyped", "k", b""))
    t.ask_now(Set("mistyped", "other", b""))
    t.ask_now(Delete("mistyped", "k"))
    assert names(t) == ["mistyped"]
    t.ask_now(Delete("mistyped", "other"))
    assert names(t) == []


def test_a_job_without_members_is_gone_with_the_last_value_of_its_queues() -> None:
    t = Transcript()
    t.ask_now(QueuePush("mistyped", "q", b"v"))
    t.ask_now(QueuePop("mistyped", "q"))
    assert names(t) == []


def test_a_job_whose_last_key_is_deleted_stays_while_somebody_waits() -> None:
    t = Transcript()
    waiting = t.ask(Get("j", "late", wait=True))
    t.ask_now(Set("j", "k", b""))
    t.ask_now(Delete("j", "k"))
    assert names(t) == ["j"]
    t.cancel(waiting)
    assert names(t) == []


def test_a_forgotten_job_does_not_give_a_revision_twice() -> None:
    t = Transcript()
    first = t.ask_now(Set("j", "k", b""))
    t.ask_now(Delete("j", "k"))
    assert t.ask_now(Set("j", "k", b"")) > first


# ---------------------------------------------------------------- deletion


def test_a_deleted_job_is_forgotten_with_its_keys() -> None:
    t = Transcript()
    run_once(t)
    t.ask_now(Set("j", "k", b"v"))
    t.ask_now(QueuePush("j", "q", b"v"))
    t.ask_now(Barrier("j", "b", "a", ("a",)))
    assert t.ask_now(DeleteJob("j", "me")) == 0
    assert names(t) == []
    assert t.ask_refused(Get("j", "k")).status is Status.NOT_FOUND
    assert t.ask_now(Barrier("j", "b", "a", ("a",))) == 1


def test_a_job_that_is_not_there_cannot_be_deleted() -> None:
    t = Transcript()
    assert t.ask_refused(DeleteJob("j", "me")).status is Status.NOT_FOUND


@pytest.mark.parametrize("size", [1, 2], ids=["running", "forming"])
def test_a_job_with_members_is_deleted_only_by_force(size: int) -> None:
    t = Transcript()
    session = t.join(0, size)
    t.ask_now(Set("j", "k", b"v"))
    refusal = t.ask_refused(DeleteJob("j", "me"))
    assert refusal.status is Status.FAILED_PRECONDITION
    assert "allhands abort j" in refusal.text
    assert t.ask_now(Get("j", "k")).value == b"v"
    assert t.ask_now(DeleteJob("j", "me", force=True)) == 1
    assert t.ends[session] == Refusal(Status.ABORTED, "job j was deleted by me")
    assert names(t) == []
    t.advance_to(100.0)
    t.form_world(2)
    assert t.ask_now(DescribeJob("j")).epoch == 1


def test_who_decides_together_in_a_deleted_job_is_told_that_it_is_over() -> None:
    t = Transcript()
    t.form_world(2, elastic=True)
    newcomer = t.join(elastic=True)
    asking = t.ask(ChangeGroup("j", "member1", "world", "agree", flag=True))
    t.ask_now(DeleteJob("j", "me", force=True))
    assert asking in t.outcomes
    assert newcomer in t.ends
    assert t.machine.next_due is None or t.advance_to(1000.0) is None
    assert names(t) == []


def test_who_waits_for_a_key_of_a_deleted_job_goes_on_waiting() -> None:
    t = Transcript()
    run_once(t)
    waiting = t.ask(Get("j", "k", wait=True))
    t.ask_now(DeleteJob("j", "me"))
    t.ask_now(Set("j", "k", b"new"))
    outcome = t.outcomes[waiting]
    assert isinstance(outcome, KeyPut)
    assert outcome.value == b"new"


def test_an_ended_job_that_somebody_waits_at_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(idle_jobs, "IDLE_JOBS_KEPT", 1)
    t = Transcript()
    run_once(t, "first")
    waiting = t.ask(Get("first", "k", wait=True))
    for number in range(3):
        run_once(t, f"run{number}")
    t.ask_now(Set("first", "k", b"v"))
    assert t.outcomes[waiting] == KeyPut("first", "k", b"v", 1, 1, 1)


def test_draining_takes_in_nobody_and_waits_for_the_running_worlds() -> None:
    t = Transcript()
    runs = t.form_world(2, job="runs")
    forms = t.join(0, 2, job="forms")
    t.handle(Drain("it got SIGTERM"))
    assert t.read_pushed(runs[0]) == t.read_pushed(runs[1]) == [Draining("it got SIGTERM")]
    assert t.ends[forms] == Refusal(
        Status.UNAVAILABLE, "the coordinator is going down and takes in nobody"
    )
    for session in (t.join(1, 2, job="forms"), t.join(0, 1, job="new")):
        refusal = t.ends[session]
        assert refusal is not None
        assert refusal.status is Status.FAILED_PRECONDITION, "who joins is not to try again"
        assert refusal.text.startswith("the coordinator is shutting down (it got SIGTERM)")
    t.ask_now(Set("runs", "k", b"still served"))
    t.send(runs[0], Leave())
    assert not t.is_drained
    t.send(runs[1], Leave())
    assert t.is_drained


def test_who_comes_while_an_embedded_coordinator_drains_may_try_again() -> None:
    t = Transcript()
    t.form_world(1, job="runs")
    t.handle(Drain())
    refusal = t.ends[t.join(0, 1, job="new")]
    assert refusal is not None
    assert refusal.status is Status.UNAVAILABLE, "rank 0 hosts the next one at the same place"


def test_draining_is_done_when_the_last_world_is_lost() -> None:
    t = Transcript()
    (session,) = t.form_world(1)
    t.handle(Drain())
    assert t.read_pushed(session) == []
    t.break_session(session)
    assert not t.is_drained
    t.advance_to(0.5)
    assert t.is_drained


def test_draining_without_worlds_is_done_at_once() -> None:
    t = Transcript()
    t.handle(Drain())
    assert t.is_drained
