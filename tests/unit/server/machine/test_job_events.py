"""Event log of a job: what it says of which happening, in bounded memory, and who follows it."""

import pytest

from allhands_server.machine import job_events
from allhands_server.machine.events import AuthenticationFailed
from allhands_server.machine.job_events import EventCounts, JobEvents
from allhands_server.machine.machine import Machine
from allhands_server.machine.member_messages import Abort, CancelCall, Leave, OpenGroup
from allhands_server.machine.refusals import Status
from allhands_server.machine.requests import (
    AbortJob,
    AwaitVerdict,
    Barrier,
    CancelBarrier,
    ChangeGroup,
    DeleteJob,
    ListEvents,
    ReportExit,
)
from allhands_server.machine.store.keys import Set
from allhands_server.machine.values import JobEvent
from allhands_server.testing import Transcript


def list_events(t: Transcript, after: int = 0) -> list[JobEvent]:
    return [*t.ask_now(ListEvents("j", after))]


def kinds(t: Transcript) -> list[str]:
    return [event.kind for event in list_events(t)]


def test_a_world_that_forms_and_ends_leaves_its_history() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    t.now = 3.0
    t.send(first, Leave())
    error = f"ValueError: no 'x' in {'y' * 100}"
    t.send(second, Leave(error=f"{error}\nTraceback"))
    events = list_events(t)
    assert [event.kind for event in events] == [
        *("joined", "joined", "formed"),
        *("left", "left", "ended"),
    ]
    assert [event.number for event in events] == [1, 2, 3, 4, 5, 6]
    assert [event.at for event in events] == [0.0, 0.0, 0.0, 3.0, 3.0, 3.0]
    assert [event.rank for event in events] == [0, 1, None, 0, 1, None]
    assert events[2].epoch == 1
    assert "rank 1 (host host2, pid 1002) joined" in events[1].text
    assert (events[3].state, events[4].state) == ("", "error")
    assert events[4].text == f"rank 1 (host host2, pid 1002) left because of {error}; epoch 2"


def test_a_loss_has_the_class_and_the_sentence_of_its_verdict() -> None:
    t = Transcript()
    sessions = t.form_world(2, pid_namespace="p", exit_is_reported=True)
    t.ask_now(ReportExit("j", "p", 1002, f"born{sessions[1]}", -9))
    t.break_session(sessions[1])
    [loss] = [event for event in list_events(t) if event.kind == "lost"]
    assert (loss.rank, loss.state, loss.epoch) == (1, "dead", 2)
    assert "SIGKILL" in loss.text
    assert t.machine.measure(t.now).lost == {"dead": 1}


def test_the_verdict_on_a_call_is_an_event_with_the_state_of_the_absent() -> None:
    t = Transcript()
    first, _ = t.form_world(2)
    t.send(first, OpenGroup("world", (0, 1)))
    t.ask(AwaitVerdict("j", "member1", "world", 1, "all_reduce", (1,)), due=1.0)
    t.advance_to(2.0)
    [verdict] = [event for event in list_events(t) if event.kind == "verdict"]
    assert "all_reduce" in verdict.text
    assert verdict.state
    assert t.machine.measure(t.now).absent == {verdict.state: 1}


def test_aborts_and_cancellations_name_who_did_it() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    t.send(first, CancelCall("world", 4, "Ctrl-C"))
    t.send(second, Abort("", "the loss is nan"))
    t.ask_now(AbortJob("j", "alice (host a)", "out of time"))
    t.ask(Barrier("j", "start", "one", ("one", "two")))
    t.ask_now(CancelBarrier("j", "start", "bob", "no need"))
    events = list_events(t)[3:]
    assert [event.kind for event in events] == ["cancelled", "aborted", "aborted", "cancelled"]
    assert [event.by.partition(" (")[0] for event in events] == [
        *("rank 0", "rank 1", "alice", "bob")
    ]
    for event, said in zip(
        events, ("Ctrl-C", "the loss is nan", "out of time", "no need"), strict=True
    ):
        assert said in event.text


def test_who_was_refused_is_told_with_the_reason() -> None:
    t = Transcript()
    t.join(0, 2)
    t.join(0, 3)
    t.handle(AuthenticationFailed("10.0.0.9", "wrong token"))
    refused = [event for event in list_events(t) if event.kind == "refused"]
    assert len(refused) == 2
    assert "host host2, pid 1002" in refused[0].text
    assert "10.0.0.9" in refused[1].text
    assert "wrong token" in refused[1].text


def test_who_leaves_before_the_world_is_complete_is_told() -> None:
    t = Transcript()
    t.join(0, 3)
    session = t.join(1, 3)
    t.break_session(session)
    assert kinds(t) == ["joined", "joined", "left"]


def test_a_regrouping_is_told_with_its_epoch() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    for session in (first, second):
        t.send(session, OpenGroup("world", (0, 1)))
    t.break_session(second)
    t.advance_to(2.0)
    t.ask(ChangeGroup("j", "member1", "world", "shrink"))
    [regrouped] = [event for event in list_events(t) if event.kind == "regrouped"]
    assert regrouped.epoch == 3
    assert "1 members of world@3" in regrouped.text


def test_a_deletion_names_who_and_how_many_were_expelled() -> None:
    t = Transcript()
    t.form_world(2)
    waiting = t.ask(ListEvents("j", 3, waits=True), due=10.0)
    t.ask_now(DeleteJob("j", "alice", force=True))
    found = t.outcomes[waiting]
    assert isinstance(found, tuple)
    assert [event.kind for event in found] == ["ended", "deleted"]
    assert found[1].by == "alice"
    assert "2 members were expelled" in found[1].text


def test_followers_hear_of_the_next_event_or_of_none_in_time() -> None:
    t = Transcript()
    t.join(0, 2)
    [joined] = list_events(t)
    waiting = t.ask(ListEvents("j", joined.number, waits=True), due=5.0)
    in_vain = t.ask(ListEvents("j", 10, waits=True), due=5.0)
    cancelled = t.ask(ListEvents("j", joined.number, waits=True), due=5.0)
    t.cancel(cancelled)
    assert waiting not in t.outcomes
    t.join(1, 2)
    found = t.outcomes[waiting]
    assert isinstance(found, tuple)
    assert [event.kind for event in found] == ["joined", "formed"]
    t.advance_to(6.0)
    assert t.outcomes[in_vain] == ()


def test_of_a_job_that_is_not_known_there_are_none() -> None:
    t = Transcript()
    refused = t.ask_refused(ListEvents("nothing"))
    assert refused.status is Status.NOT_FOUND


def test_a_job_that_is_kept_after_its_end_keeps_its_events_over_its_next_world() -> None:
    t = Transcript()
    for _ in range(2):
        [session] = t.form_world(1)
        t.send(session, Leave())
    assert kinds(t) == ["joined", "formed", "left", "ended"] * 2


def test_a_restart_begins_them_anew_and_says_so() -> None:
    t = Transcript(machine=Machine(has_log=True))
    t.form_world(2)
    t.ask_now(Set("j", "k", b"v"))
    t.restart()
    [event] = list_events(t)
    assert event.kind == "restored"
    assert event.epoch == 1
    assert "2 members" in event.text


def test_arrivals_in_thousands_push_out_no_loss() -> None:
    events = JobEvents("j")
    events.add("lost", "rank 3 is lost", 0.0, rank=3, state="dead")
    for rank in range(5_000):
        events.add("joined", f"rank {rank} joined", 1.0, rank=rank)
    kept = events.list_after(0)
    assert kept[0].text == "rank 3 is lost"
    assert len(kept) == 1 + sum(event.kind == "joined" for event in kept)
    assert len(kept) <= 1 + job_events.MOST_OF_PART
    assert kept[-1].number == 5_001


def test_memory_is_bounded_for_each_job_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_events, "LARGEST_TOTAL", 50_000)
    counts = EventCounts()
    logs = [JobEvents(f"j{number}", counts) for number in range(20)]
    for log in logs:
        for _ in range(100):
            log.add("aborted", "x" * 10_000, 0.0, by="y" * 10_000)
    assert all(len(log.list_after(0)) >= job_events.FEWEST for log in logs)
    longest = 2 * job_events.LONGEST_TEXT + 200
    assert counts.nbytes <= 50_000 + 20 * job_events.FEWEST * longest
    for log in logs:
        log.close()
    assert counts.nbytes == 0
