"""Watches: every event once and in order, also amid restarts, compaction and refused commits."""

import random

import pytest

from allhands_server.machine import Machine
from allhands_server.machine.changes import Change, KeyDeleted, KeyPut
from allhands_server.machine.effects import Answer, Changed
from allhands_server.machine.events import CommitDurable, CommitsRefused, RequestReceived
from allhands_server.machine.refusals import Status
from allhands_server.machine.requests import DeleteJob, ListJobs
from allhands_server.machine.store import history, watches
from allhands_server.machine.store.keys import Delete, MultiSet, Set
from allhands_server.machine.store.leases import LeaseGrant
from allhands_server.machine.store.records import Compact, DeleteRange, Put
from allhands_server.machine.store.transactions import Txn
from allhands_server.machine.store.watches import Watch, WatchResult
from allhands_server.resource_limits import ResourceLimits
from allhands_server.testing import Transcript


def names(result: object) -> list[str]:
    """Return the events of an answer as words: +key=value@revision, -key@revision."""
    assert isinstance(result, WatchResult)
    return [name(one.change) for one in result.events]


def name(change: KeyPut | KeyDeleted) -> str:
    if isinstance(change, KeyPut):
        return f"+{change.key}={change.value.decode()}@{change.revision}"
    return f"-{change.key}@{change.revision}"


def test_a_watch_that_waits_is_answered_by_the_event() -> None:
    t = Transcript()
    waiting = t.ask(Watch("j", "k", wait=True))
    t.ask_now(Set("j", "other", b"1"))
    assert waiting not in t.outcomes
    t.ask_now(Set("j", "k", b"2"))
    found = t.outcomes[waiting]
    assert names(found) == ["+k=2@2"]
    assert isinstance(found, WatchResult)
    assert (found.revision, found.next_revision, found.next_skip, found.oldest) == (2, 3, 0, 0)


def test_a_watch_of_a_prefix_has_all_events_of_one_change_together() -> None:
    t = Transcript()
    waiting = t.ask(Watch("j", "a/", prefix=True, wait=True))
    t.ask_now(MultiSet("j", (("a/1", b"x"), ("b", b""), ("a/2", b"y"))))
    assert names(t.outcomes[waiting]) == ["+a/1=x@1", "+a/2=y@1"]
    waiting = t.ask(Watch("j", "a/", prefix=True, revision=2, wait=True))
    t.ask_now(Txn("j", (), (DeleteRange("j", "a/", prefix=True), Put("j", "c", b"")), ()))
    assert names(t.outcomes[waiting]) == ["-a/1@2", "-a/2@2"]


def test_a_watch_begins_at_a_revision_of_the_past() -> None:
    t = Transcript()
    for value in (b"1", b"2", b"3"):
        t.ask_now(Set("j", "k", value))
    t.ask_now(MultiSet("j", ()))
    t.ask_now(Txn("j", (), (DeleteRange("j", "k"), Put("j", "other")), ()))
    assert names(t.ask_now(Watch("j", "k", revision=2))) == ["+k=2@2", "+k=3@3", "-k@4"]
    assert names(t.ask_now(Watch("j", "k", revision=2, without_puts=True))) == ["-k@4"]
    kept = t.ask_now(Watch("j", "k", revision=3, without_deletions=True, previous=True))
    assert names(kept) == ["+k=3@3"]
    assert kept.events[0].previous == KeyPut("j", "k", b"2", 2, 1, 2)
    nothing = t.ask_now(Watch("j", "k"))
    assert nothing == WatchResult(4, next_revision=5)


def test_a_watch_that_waits_hears_at_its_deadline_where_to_go_on() -> None:
    t = Transcript()
    waiting = t.ask(Watch("j", "k", wait=True), due=5.0)
    t.ask_now(Set("j", "other", b""))
    t.advance_to(5.0)
    assert t.outcomes[waiting] == WatchResult(1, next_revision=2)


def test_the_keys_of_a_lease_are_events_at_its_end() -> None:
    t = Transcript()
    t.ask_now(LeaseGrant("j", 3.0, 7))
    t.ask_now(Put("j", "k", b"", lease=7))
    waiting = t.ask(Watch("j", "k", wait=True, previous=True))
    t.advance_to(3.0)
    found = t.outcomes[waiting]
    assert names(found) == ["-k@3"]
    assert isinstance(found, WatchResult)
    assert found.events[0].previous is not None
    assert found.events[0].previous.lease == 7


def test_all_changes_of_one_instant_are_events() -> None:
    t = Transcript()
    for number in (7, 8, 9):
        t.ask_now(LeaseGrant("j", 3.0, number))
        t.ask_now(Put("j", f"k{number}", b"", lease=number))
    waiting = t.ask(Watch("j", "k", prefix=True, wait=True))
    t.advance_to(3.0)
    assert names(t.outcomes[waiting]) == ["-k7@7", "-k8@8", "-k9@9"]


def test_the_keys_of_a_member_are_events_at_its_loss() -> None:
    t = Transcript()
    _, second = t.form_world(2)
    t.ask_now(Put("j", "k", b"", member=f"member{second}"))
    waiting = t.ask(Watch("j", "k", wait=True))
    t.break_session(second)
    t.advance_to(5.0)
    assert names(t.outcomes[waiting]) == ["-k@2"]


def test_what_is_compacted_is_refused_with_the_oldest_revision() -> None:
    t = Transcript()
    for _ in range(5):
        t.ask_now(Set("j", "k", b""))
    t.ask_now(Compact("j", 3))
    assert t.ask_now(Watch("j", "k", revision=3)) == WatchResult(5, oldest=4)
    assert len(t.ask_now(Watch("j", "k", revision=4)).events) == 2


def test_who_waits_over_the_end_of_the_keys_is_told() -> None:
    t = Transcript()
    t.form_world(1)
    t.ask_now(Set("j", "k", b""))
    waiting = t.ask(Watch("j", "k", wait=True))
    t.ask_now(DeleteJob("j", "me", force=True))
    assert t.outcomes[waiting] == WatchResult(2, oldest=3)


def test_a_revision_that_never_was_is_refused() -> None:
    t = Transcript()
    t.ask_now(Set("j", "k", b""))
    assert t.ask_now(Watch("j", "k", revision=2)).next_revision == 2
    refusal = t.ask_refused(Watch("j", "k", revision=3))
    assert refusal.status is Status.FAILED_PRECONDITION
    assert "job j is at revision 1" in refusal.text


def test_a_job_is_kept_while_its_keys_are_watched() -> None:
    t = Transcript()
    waiting = t.ask(Watch("j", "k", wait=True))
    t.advance_to(10 * watches.HOLD_SECONDS)
    t.cancel(waiting)
    t.advance_to(t.now + watches.HOLD_SECONDS / 2)
    assert len(t.ask_now(ListJobs())) == 1
    t.advance_to(t.now + 2 * watches.HOLD_SECONDS)
    assert t.ask_now(ListJobs()) == ()
    assert t.machine.next_due is None


def test_a_watched_job_keeps_its_history_without_keys() -> None:
    t = Transcript()
    next_revision = t.ask_now(Watch("j", "k")).next_revision
    t.ask_now(Set("j", "k", b"1"))
    t.ask_now(Delete("j", "k"))
    assert names(t.ask_now(Watch("j", "k", revision=next_revision))) == ["+k=1@1", "-k@2"]


def test_a_job_without_keys_keeps_its_history_over_a_restart() -> None:
    machine, log = Machine(has_log=True), list[Change]()
    for ticket, request in enumerate((Set("j", "k", b"1"), Delete("j", "k"))):
        for effect in machine.handle(RequestReceived(ticket, request), 0.0):
            if isinstance(effect, Changed):
                log += effect.changes
    t = Transcript()
    t.machine.restore(log, 0.0)
    t.machine.finish_restore(0.0)
    assert names(t.ask_now(Watch("j", "k", revision=1))) == ["+k=1@1", "-k@2"]
    t.advance_to(4 * watches.HOLD_SECONDS)
    assert t.ask_now(ListJobs()) == ()


def test_so_many_watches_of_a_job_wait() -> None:
    t = Transcript(machine=Machine(limits=ResourceLimits(job_watches=2)))
    for key in "ab":
        t.ask(Watch("j", key, wait=True))
    assert t.ask_refused(Watch("j", "c", wait=True)).status is Status.RESOURCE_EXHAUSTED
    t.ask_now(Set("j", "a", b""))
    t.ask(Watch("j", "c", wait=True))


def test_an_answer_that_is_full_goes_on_in_the_middle_of_a_revision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "EVENTS", 2)
    t = Transcript()
    t.ask_now(MultiSet("j", tuple((f"k{one}", b"") for one in range(5))))
    t.ask_now(Set("j", "k9", b""))
    request, seen = Watch("j", "k", prefix=True, revision=1), []
    for _ in range(4):
        found = t.ask_now(request)
        seen += names(found)
        request = Watch("j", "k", prefix=True, revision=found.next_revision, skip=found.next_skip)
    assert seen == [*(f"+k{one}=@1" for one in range(5)), "+k9=@2"]


def test_of_two_very_large_values_an_event_has_one() -> None:
    t = Transcript()
    for _ in range(2):
        t.ask_now(Set("j", "k", bytes(4 << 20)))
    (event,) = t.ask_now(Watch("j", "k", revision=2, previous=True)).events
    assert event.previous is None


@pytest.mark.parametrize("seed", range(30))
def test_a_watcher_sees_each_event_once_and_in_order(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it breaks off at random, and where answers have room for few events."""
    monkeypatch.setattr(watches, "EVENTS", 3)
    monkeypatch.setattr(history, "HISTORY_NBYTES", 1 << 20)
    randomly = random.Random(seed)
    t = Transcript()
    t.ask_now(Set("j", "0", b""))
    seen: list[str] = []
    place, skip, waiting = 2, 0, None

    def look() -> None:
        nonlocal place, skip, waiting
        if waiting is None:
            waiting = t.ask(Watch("j", "k", prefix=True, revision=place, skip=skip, wait=True))
        if (found := t.outcomes.get(waiting)) is not None:
            waiting = None
            assert isinstance(found, WatchResult)
            assert not found.oldest
            seen.extend(names(found))
            place, skip = found.next_revision, found.next_skip

    for _ in range(120):
        change = randomly.choice(
            [
                Set("j", randomly.choice(["k1", "k2", "other"]), b"%d" % randomly.randrange(9)),
                MultiSet("j", (("k1", b"m"), ("k2", b"m"), ("k3", b"m"), ("k4", b"m"))),
                DeleteRange("j", "k", prefix=True),
                Delete("j", "k1"),
            ]
        )
        t.ask_now(change)
        if randomly.random() < 0.5:
            look()
        if waiting is not None and randomly.random() < 0.2:
            t.cancel(waiting)
            if waiting not in t.outcomes:
                waiting = None
    while waiting is None:
        look()
    if waiting in t.outcomes:
        look()
    while (rest := t.ask_now(Watch("j", "k", prefix=True, revision=place, skip=skip))).events:
        seen += names(rest)
        place, skip = rest.next_revision, rest.next_skip
    monkeypatch.setattr(watches, "EVENTS", 10_000)
    assert seen == names(t.ask_now(Watch("j", "k", prefix=True, revision=2)))
    assert len(seen) > 100


def test_a_watch_goes_on_over_a_restart_with_the_log() -> None:
    machine, log = Machine(has_log=True), list[Change]()
    for ticket, value in enumerate((b"1", b"2", b"3")):
        for effect in machine.handle(RequestReceived(ticket, Set("j", "k", value)), 0.0):
            if isinstance(effect, Changed):
                log += effect.changes
    t = Transcript()
    t.machine.restore(log, 0.0)
    waiting = t.ask(Watch("j", "k", revision=3, wait=True))
    assert names(t.outcomes[waiting]) == ["+k=3@3"]
    shortened = Transcript()
    shortened.machine.restore(machine.list_changes(), 0.0)
    assert shortened.ask_now(Watch("j", "k", revision=3)) == WatchResult(3, oldest=4)
    waiting = shortened.ask(Watch("j", "k", revision=4, wait=True))
    shortened.ask_now(Set("j", "k", b"4"))
    assert names(shortened.outcomes[waiting]) == ["+k=4@4"]


def test_events_that_the_log_refused_never_were() -> None:
    machine = Machine(has_log=True)
    machine.handle(RequestReceived(0, Watch("j", "k")), 0.0)
    machine.handle(RequestReceived(1, Set("j", "k", b"1")), 0.0)
    machine.handle(CommitsRefused(), 0.0)
    machine.handle(RequestReceived(2, Set("j", "k", b"2")), 0.0)
    (answer,) = machine.handle(RequestReceived(3, Watch("j", "k", revision=1)), 0.0)
    assert isinstance(answer, Answer)
    assert names(answer.reply) == ["+k=2@2"]


def test_a_watch_goes_on_over_a_restart_after_changes_that_the_log_refused() -> None:
    machine, log = Machine(has_log=True), list[Change]()
    for effect in machine.handle(RequestReceived(1, Set("j", "k", b"1")), 0.0):
        if isinstance(effect, Changed):
            log += effect.changes
    machine.handle(CommitDurable(), 0.0)
    machine.handle(RequestReceived(2, Set("j", "k", b"2")), 0.0)
    machine.handle(CommitsRefused(), 0.0)
    (answer,) = machine.handle(RequestReceived(3, Watch("j", "k")), 0.0)
    assert isinstance(answer, Answer)
    t = Transcript()
    t.machine.restore(log)
    assert names(t.ask_now(Watch("j", "k", revision=answer.reply.next_revision))) == []
    t.ask_now(Set("j", "k", b"3"))
    assert names(t.ask_now(Watch("j", "k", revision=answer.reply.next_revision))) == ["+k=3@2"]
