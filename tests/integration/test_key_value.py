"""The key-value service from threads: records, transactions, watches, leases, over both ports."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import allhands as ah
from allhands import errors, kv
from allhands.coordinator.client import Control
from allhands.testing.daemon import DaemonProcess
from allhands.testing.poll import poll_until

_PATIENCE = 60.0


@pytest.fixture(params=[True, False], ids=["lines", "grpc"])
def control(
    daemon: DaemonProcess, job_name: str, request: pytest.FixtureRequest
) -> Iterator[Control]:
    use_lines = request.param
    with Control(daemon.endpoint, job=job_name, timeout=_PATIENCE, use_lines=use_lines) as made:
        yield made


def test_a_key_has_a_record(control: Control) -> None:
    first = control.put("k", "one")
    second = control.put("k", b"two")
    assert control.get_record("k") == ah.KeyRecord("k", b"two", first, second, 2)
    past = control.get_record("k", revision=first)
    assert past is not None
    assert past.value == b"one"
    assert control.get_record("none") is None


def test_ranges_prefixes_and_pages(control: Control) -> None:
    control.multi_put({f"a/{one}": str(one) for one in range(5)})
    control.put("b", "other")
    assert [one.key for one in control.get_prefix("a/")] == [f"a/{one}" for one in range(5)]
    assert [one.value for one in control.get_range("a/1", "a/3")] == [b"1", b"2"]
    newest = control.get_range("a", sort_by="mod", descending=True, limit=1, keys_only=True)
    assert [(one.key, one.value) for one in newest] == [("b", b"")]
    assert (control.count("a/"), control.count()) == (5, 6)
    pages = []
    for page in control.pages("a/", limit=2):
        pages.append([one.key for one in page])
        control.put("a/11", "in between")  # all pages are of one revision
    assert pages == [["a/0", "a/1"], ["a/2", "a/3"], ["a/4"]]
    assert control.delete_range("a/1", "a/2") == 2
    assert control.delete_prefix("a/") == 4
    assert control.list() == ("b",)


def test_keys_change_by_condition(control: Control) -> None:
    first = control.compare_and_set("k", "1", revision=0)
    assert first is not None
    assert control.compare_and_set("k", "2", revision=0) is None
    won = control.transaction([kv.value("k") == "1"], [kv.Put("k", "3")], [kv.Get("k")])
    lost = control.transaction([kv.value("k") == "1"], [kv.Put("k", "3")], [kv.Get("k")])
    assert (won.succeeded, lost.succeeded) == (True, False)
    (found,) = lost.results
    assert isinstance(found, ah.KeyRange)
    assert found.records[0].value == b"3"


def test_a_history_that_is_compacted_is_told_of(control: Control) -> None:
    revision = control.put("k", "")
    control.put("k", "")
    control.compact(revision + 1)
    with pytest.raises(errors.Compacted) as caught:
        control.get_record("k", revision=revision)
    assert caught.value.oldest == revision + 1
    with pytest.raises(errors.Compacted):
        next(control.watch("k", revision=revision))


def test_a_watch_yields_each_event_once(control: Control) -> None:
    with control.watch("n/", prefix=True) as watch, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(lambda: [next(watch) for _ in range(101)])
        for number in range(100):
            control.put(f"n/{number % 3}", str(number))
        control.delete("n/0")
        events = reading.result(_PATIENCE)
    assert [one.value for one in events[:100]] == [b"%d" % one for one in range(100)]
    assert events[100].is_deletion


def test_a_closed_watch_ends_also_where_another_thread_waits(control: Control) -> None:
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            watch = control.watch("k")
            waiting = pool.submit(list, watch)
            poll_until(lambda: watch._canceller._cancel is not None)  # noqa: B023
            watch.close()
            assert waiting.result(_PATIENCE) == []
            assert control.put("other", "") > 0
            assert list(watch) == []


def test_a_deadline_around_a_watch_ends_it(control: Control) -> None:
    with control.watch("k") as watch, pytest.raises(errors.StoreTimeout), ah.deadline(0.3):
        next(watch)


def test_a_lease_lives_as_long_as_its_block(control: Control) -> None:
    with control.watch("k") as watch:
        with control.lease(6) as lease:
            control.put("k", "", lease=lease)
            left = [lease.status().remaining]
            while left[-1] <= min(left):  # nothing tells of a keep-alive
                time.sleep(0.1)
                left.append(lease.status().remaining)
            status = lease.status()
            assert (status.granted, status.keys) == (6, ("k",))
            assert control.leases() == (lease.number,)
            assert not lease.is_lost
        assert [next(watch).is_deletion for _ in range(2)] == [False, True]
    assert control.leases() == ()
    with pytest.raises(errors.LeaseNotFound):
        control.keep_alive(lease.number)


def test_a_lease_that_is_revoked_elsewhere_is_lost(control: Control) -> None:
    with control.lease(0.5) as lease:
        assert control.revoke_lease(lease.number) == 0
        assert lease.lost.wait(_PATIENCE)


def test_a_closed_client_keeps_no_lease_alive(control: Control, daemon: DaemonProcess) -> None:
    with control.watch("k", puts=False) as watch:
        with Control(daemon.endpoint, job=control.job_name) as other:
            lease = other.lease(2)
            lease.__enter__()
            other.put("k", "", lease=lease)
        assert next(watch).is_deletion
    poll_until(lambda: "keep-alive" not in " ".join(one.name for one in threading.enumerate()))


def test_a_lease_may_be_named_and_kept_by_hand(control: Control) -> None:
    assert control.grant_lease(30, lease=77) == 77
    with pytest.raises(errors.Refused, match="has lease 77 already"):
        control.grant_lease(30, lease=77)
    assert control.keep_alive(77) == 30
    control.put("k", "", lease=77)
    assert control.lease_status(77).keys == ("k",)
    assert control.revoke_lease(77) == 1
    with pytest.raises(errors.NotFound):
        control.get("k")
