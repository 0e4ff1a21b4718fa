"""Ranges of keys: limits and refusals, and the history below them."""

import pytest

from allhands_server.machine import Machine
from allhands_server.machine.changes import Change, HistoryCompacted
from allhands_server.machine.effects import Changed
from allhands_server.machine.events import RequestReceived
from allhands_server.machine.refusals import Status
from allhands_server.machine.requests import DeleteJob
from allhands_server.machine.store import draft, history, range_query
from allhands_server.machine.store.keys import Get, Set
from allhands_server.machine.store.records import DeleteRange, Put, Range
from allhands_server.machine.store.watches import Watch
from allhands_server.testing import Transcript


def fill(t: Transcript, count: int) -> None:
    for number in range(count):
        t.ask_now(Set("j", f"k{number:03d}", b"%d" % number))


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (Range("j", ""), "the key is empty"),
        (Range("j", "b", "a"), "'a' is not behind 'b'"),
        (Range("j", "b", "b"), "'b' is not behind 'b'"),
        (Range("j", "b", "c", prefix=True), "not both"),
        (Range("j", "k" * 5000, prefix=True), "4,096 is the most"),
        (Range("j", "k", order=9), "no order 9"),
        (Range("j", "k", revision=5), "5 is still to come"),
        (DeleteRange("j", ""), "the key is empty"),
        (Put("j", "", b""), "the key is empty"),
        (Put("j", "k", bytes(5 << 20)), "4,194,304 is the most"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(request_: object, text: str) -> None:
    t = Transcript()
    t.ask_now(Set("j", "k", b""))
    refusal = t.ask_refused(request_)
    assert refusal.status is Status.INVALID_ARGUMENT
    assert text in refusal.text
    assert t.ask_now(Range("j", "", prefix=True)).revision == 1


def test_a_put_keeps_the_value_of_a_key_that_there_is() -> None:
    t = Transcript()
    assert t.ask_refused(Put("j", "k", keeps_value=True)).status is Status.NOT_FOUND
    t.ask_now(Set("j", "k", b"v"))
    t.ask_now(Put("j", "k", b"ignored", keeps_value=True))
    assert t.ask_now(Get("j", "k")).value == b"v"
    assert t.ask_now(Get("j", "k")).version == 2


def test_a_put_answers_who_waits_for_the_key() -> None:
    t = Transcript()
    waiting = t.ask(Get("j", "k", wait=True))
    t.ask_now(Put("j", "k", b"v"))
    assert waiting in t.outcomes


def test_a_range_is_cut_to_the_records_of_a_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_query, "RANGE_RECORDS", 3)
    t = Transcript()
    fill(t, 5)
    found = t.ask_now(Range("j", "", prefix=True))
    assert [one.key for one in found.records] == ["k000", "k001", "k002"]
    assert (found.count, found.has_more) == (5, True)
    rest = t.ask_now(Range("j", "k002\0", "\0"))
    assert ([one.key for one in rest.records], rest.has_more) == (["k003", "k004"], False)


def test_a_range_is_cut_to_the_bytes_of_a_reply() -> None:
    t = Transcript()
    for key in "abc":
        t.ask_now(Set("j", key, bytes(3 << 20)))
    found = t.ask_now(Range("j", "", prefix=True))
    assert ([one.key for one in found.records], found.has_more) == (["a", "b"], True)
    assert len(t.ask_now(Range("j", "", prefix=True, keys_only=True)).records) == 3


def test_too_many_keys_are_neither_sorted_nor_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_query, "SORTED_KEYS", 3)
    monkeypatch.setattr(draft, "DELETED_KEYS", 3)
    t = Transcript()
    fill(t, 4)
    assert "sort it by the key" in t.ask_refused(Range("j", "", prefix=True, order=3)).text
    refusal = t.ask_refused(DeleteRange("j", "", prefix=True))
    assert refusal.status is Status.RESOURCE_EXHAUSTED
    assert "delete it in parts" in refusal.text
    assert t.ask_now(Range("j", "", prefix=True)).count == 4


def test_the_oldest_events_are_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "HISTORY_NBYTES", 16 * 1100)
    t = Transcript()
    for _ in range(40):
        t.ask_now(Set("j", "k", b""))
    found = t.ask_now(Range("j", "k", revision=1))
    assert found.records == ()
    assert 20 < found.oldest < 40
    (record,) = t.ask_now(Range("j", "k", revision=found.oldest)).records
    assert record.revision == found.oldest


def test_the_histories_of_all_jobs_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "HISTORIES_NBYTES", 40 * 1100)
    t = Transcript()
    t.ask_now(Set("small", "k", b""))
    for number in range(300):
        t.ask_now(Set(f"job{number % 3}", "k", b""))
        assert t.machine._jobs.signals.histories.nbytes <= 40 * 1100
    oldest = [t.ask_now(Watch(f"job{one}", "k", revision=1)).oldest for one in range(3)]
    assert all(oldest)
    assert len(t.ask_now(Watch("small", "k", revision=1)).events) == 1
    for name in ("small", "job0", "job1", "job2"):
        t.ask_now(DeleteRange(name, "k"))
        t.ask_now(DeleteJob(name, "me"))
    t.advance_to(1000.0)
    assert t.machine._jobs.signals.histories.nbytes == 0
    assert not t.machine._jobs.signals.histories.histories


def test_one_revision_may_be_larger_than_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "HISTORY_NBYTES", 16 * 1100)
    t = Transcript()
    fill(t, 40)
    t.ask_now(DeleteRange("j", "k01", prefix=True))
    assert t.ask_now(Range("j", "", prefix=True, revision=40)).count == 40


def test_the_history_of_a_deleted_job_is_gone() -> None:
    t = Transcript()
    t.form_world(1)
    fill(t, 3)
    t.ask_now(DeleteJob("j", "me", force=True))
    t.ask_now(Set("j", "new", b""))
    assert t.ask_now(Range("j", "", prefix=True, revision=2)).oldest == 6


def test_the_log_brings_the_history_back_as_far_as_the_log_goes() -> None:
    log: list[Change] = []
    machine = Machine(has_log=True)
    for ticket, value in enumerate((b"1", b"2", b"3")):
        for effect in machine.handle(RequestReceived(ticket, Set("j", "k", value)), 0.0):
            if isinstance(effect, Changed):
                log += effect.changes
    whole, shortened = Transcript(), Transcript()
    whole.machine.restore(log, 0.0)
    shortened.machine.restore([*machine.list_changes()], 0.0)
    (record,) = whole.ask_now(Range("j", "k", revision=2)).records
    assert record.value == b"2"
    assert shortened.ask_now(Range("j", "k", revision=2)).oldest == 3
    (record,) = shortened.ask_now(Range("j", "k", revision=3)).records
    assert (record.value, record.created, record.version) == (b"3", 1, 3)
    whole.machine.restore([HistoryCompacted("j", 3)], 0.0)
    assert whole.ask_now(Range("j", "k", revision=2)).oldest == 3
