"""Conformance tests of stores; see `conformance`."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import pytest

from allhands.errors import AllhandsError, NotFound, Refused, StoreTimeout
from allhands.stores.contract import Store

_SHORT = 0.05
_PATIENCE = 10.0


class StoreSuite:
    """The conformance tests of a Store; subclasses supply the fixture `store`."""

    def test_get_returns_what_was_set(self, store: Store) -> None:
        store.set("key", b"\x00\xff")
        assert store.get("key") == b"\x00\xff"

    def test_the_last_set_counts(self, store: Store) -> None:
        store.set("key", b"first")
        store.set("key", b"second")
        assert store.get("key") == b"second"

    def test_a_str_is_stored_as_utf8(self, store: Store) -> None:
        store.set("key", "grüße")
        assert store.get("key") == "grüße".encode()

    def test_an_empty_value_is_a_value(self, store: Store) -> None:
        store.set("key", b"")
        assert store.check(["key"])
        assert store.get("key") == b""

    def test_get_waits_until_another_sets_the_key(self, store: Store) -> None:
        waiting = _run_in_thread(lambda: store.get("late"))
        assert not waiting.done()
        store.set("late", b"here")
        assert waiting.result(_PATIENCE) == b"here"

    def test_get_ends_with_the_timeout_of_the_store(self, store: Store) -> None:
        store.set_timeout(_SHORT)
        with pytest.raises(StoreTimeout, match=r"(?i)timeout.*nobody-sets-me"):
            store.get("nobody-sets-me")

    def test_a_timeout_is_also_pythons_own(self, store: Store) -> None:
        with pytest.raises(TimeoutError) as caught:
            store.wait(["key"], _SHORT)
        assert isinstance(caught.value, AllhandsError)

    def test_wait_names_the_missing_keys(self, store: Store) -> None:
        store.set("present", b"")
        with pytest.raises(StoreTimeout, match=r"(?i)timeout") as caught:
            store.wait(["present", "missing"], _SHORT)
        assert "missing" in str(caught.value)

    def test_wait_returns_once_all_keys_exist(self, store: Store) -> None:
        store.set("a", b"")
        waiting = _run_in_thread(lambda: store.wait(["a", "b", "c"]))
        store.set("b", b"")
        assert not waiting.done()
        store.set("c", b"")
        waiting.result(_PATIENCE)

    def test_wait_for_no_key_returns_at_once(self, store: Store) -> None:
        store.wait([], 0)

    def test_a_timeout_may_be_a_timedelta(self, store: Store) -> None:
        store.set_timeout(timedelta(milliseconds=50))
        assert store.timeout == pytest.approx(0.05)
        with pytest.raises(StoreTimeout):
            store.wait(["key"], timedelta(milliseconds=20))

    @pytest.mark.parametrize("timeout", [-1.0, float("inf"), float("nan")])
    def test_a_timeout_that_is_no_length_of_time_is_refused(
        self, store: Store, timeout: float
    ) -> None:
        with pytest.raises(ValueError, match="timeout"):
            store.wait(["key"], timeout)
        with pytest.raises(ValueError, match="timeout"):
            store.set_timeout(timeout)

    def test_a_wait_that_timed_out_leaves_the_store_usable(self, store: Store) -> None:
        with pytest.raises(StoreTimeout):
            store.wait(["key"], _SHORT)
        store.set("key", b"value")
        store.wait(["key"])

    def test_add_begins_at_zero_and_returns_the_sum(self, store: Store) -> None:
        assert store.add("count", 5) == 5
        assert store.add("count", -7) == -2

    def test_what_add_made_is_read_as_a_decimal_number(self, store: Store) -> None:
        store.add("count", 41)
        assert store.get("count") == b"41"
        store.set("count", b"100")
        assert store.add("count", 1) == 101

    def test_add_to_something_else_than_a_number_is_refused(self, store: Store) -> None:
        store.set("key", b"no number")
        with pytest.raises(Refused):
            store.add("key", 1)
        assert store.get("key") == b"no number"

    def test_add_does_not_leave_64_bits(self, store: Store) -> None:
        store.add("count", 2**63 - 1)
        with pytest.raises(Refused):
            store.add("count", 1)
        assert store.get("count") == str(2**63 - 1).encode()

    def test_adds_of_many_threads_are_all_counted(self, store: Store) -> None:
        with ThreadPoolExecutor(8) as pool:
            sums = list(pool.map(lambda _: store.add("count", 1), range(64)))
        assert sorted(sums) == list(range(1, 65))

    def test_compare_set_creates_a_key_when_nothing_is_expected(self, store: Store) -> None:
        assert store.compare_set("key", "", "new") == b"new"
        assert store.get("key") == b"new"

    def test_compare_set_does_not_create_a_key_when_something_is_expected(
        self, store: Store
    ) -> None:
        assert store.compare_set("key", b"old", b"new") == b"old"
        assert not store.check(["key"])

    def test_compare_set_replaces_what_was_expected(self, store: Store) -> None:
        store.set("key", b"old")
        assert store.compare_set("key", b"old", b"new") == b"new"
        assert store.get("key") == b"new"

    def test_compare_set_leaves_and_returns_what_was_not_expected(self, store: Store) -> None:
        store.set("key", b"other")
        assert store.compare_set("key", b"old", b"new") == b"other"
        assert store.compare_set("key", b"", b"new") == b"other"
        assert store.get("key") == b"other"

    def test_one_of_many_threads_wins_a_compare_set(self, store: Store) -> None:
        names = [f"thread {index}" for index in range(8)]
        with ThreadPoolExecutor(8) as pool:
            seen = set(pool.map(lambda name: store.compare_set("leader", "", name), names))
        assert seen == {store.get("leader")}

    def test_append_begins_with_nothing(self, store: Store) -> None:
        store.append("key", b"ab")
        store.append("key", "c")
        assert store.get("key") == b"abc"

    def test_append_wakes_who_waits_for_the_key(self, store: Store) -> None:
        waiting = _run_in_thread(lambda: store.get("late"))
        store.append("late", b"x")
        assert waiting.result(_PATIENCE) == b"x"

    def test_multi_get_returns_the_values_in_the_order_of_the_keys(self, store: Store) -> None:
        store.multi_set(["a", "b", "c"], [b"1", "2", b"3"])
        assert store.multi_get(["c", "a", "b", "a"]) == [b"3", b"1", b"2", b"1"]

    def test_multi_get_waits_for_every_key(self, store: Store) -> None:
        store.set("a", b"1")
        waiting = _run_in_thread(lambda: store.multi_get(["a", "b"]))
        assert not waiting.done()
        store.set("b", b"2")
        assert waiting.result(_PATIENCE) == [b"1", b"2"]

    def test_multi_get_of_missing_keys_ends_with_the_timeout(self, store: Store) -> None:
        store.set_timeout(_SHORT)
        with pytest.raises(StoreTimeout, match="missing"):
            store.multi_get(["missing"])

    def test_multi_set_refuses_keys_without_values(self, store: Store) -> None:
        with pytest.raises(ValueError, match="2 keys, but 1 values"):
            store.multi_set(["a", "b"], [b"1"])
        assert store.num_keys() == 0

    def test_multi_calls_with_no_keys_do_nothing(self, store: Store) -> None:
        store.multi_set([], [])
        assert store.multi_get([]) == []
        assert store.check([])

    def test_delete_says_whether_the_key_existed(self, store: Store) -> None:
        store.set("key", b"")
        assert store.delete_key("key") is True
        assert store.delete_key("key") is False
        assert not store.check(["key"])

    def test_a_deleted_key_is_waited_for_again(self, store: Store) -> None:
        store.set("key", b"")
        store.delete_key("key")
        with pytest.raises(StoreTimeout):
            store.wait(["key"], _SHORT)

    def test_check_wants_every_key(self, store: Store) -> None:
        store.set("a", b"")
        assert store.check(["a"])
        assert not store.check(["a", "b"])

    def test_keys_are_counted_and_listed_in_order(self, store: Store) -> None:
        store.multi_set(["b/2", "a", "b/1"], [b"", b"", b""])
        assert store.num_keys() == 3
        assert store.list_keys() == ["a", "b/1", "b/2"]
        assert store.list_keys("b/") == ["b/1", "b/2"]
        assert store.list_keys("c") == []

    def test_a_large_value_comes_back_whole(self, store: Store) -> None:
        value = bytes(range(256)) * 4096
        store.set("large", value)
        assert store.get("large") == value

    def test_a_queue_gives_what_was_pushed_in_order_and_once(self, store: Store) -> None:
        store.queue_push("queue", b"first")
        store.queue_push("queue", "second")
        store.queue_push("queue", b"")
        assert store.queue_len("queue") == 3
        assert [store.queue_pop("queue") for _ in range(3)] == [b"first", b"second", b""]
        assert store.queue_len("queue") == 0

    def test_a_pop_waits_until_another_pushes(self, store: Store) -> None:
        waiting = _run_in_thread(lambda: store.queue_pop("queue"))
        assert not waiting.done()
        store.queue_push("queue", b"here")
        assert waiting.result(_PATIENCE) == b"here"

    def test_a_pop_of_an_empty_queue_ends_with_the_timeout_and_takes_nothing_later(
        self, store: Store
    ) -> None:
        store.set_timeout(_SHORT)
        with pytest.raises(StoreTimeout, match=r"(?i)timeout.*nobody-pushes"):
            store.queue_pop("nobody-pushes")
        store.queue_push("nobody-pushes", b"late")
        assert store.queue_pop("nobody-pushes", block=False) == b"late"

    def test_a_pop_that_does_not_block_says_that_the_queue_is_empty(self, store: Store) -> None:
        with pytest.raises(NotFound, match="queue"):
            store.queue_pop("queue", block=False)

    def test_queues_and_keys_of_one_name_are_apart(self, store: Store) -> None:
        store.set("name", b"key")
        store.queue_push("name", b"item")
        store.queue_push("other", b"item")
        assert store.num_keys() == 1
        assert store.queue_pop("name") == b"item"
        assert store.get("name") == b"key"

    def test_each_value_is_popped_by_one_of_many_threads(self, store: Store) -> None:
        with ThreadPoolExecutor(8) as pool:
            popped = [pool.submit(store.queue_pop, "queue") for _ in range(32)]
            for number in range(32):
                store.queue_push("queue", str(number))
            found = sorted(int(one.result(_PATIENCE)) for one in popped)
        assert found == list(range(32))

    def test_a_clone_has_the_same_keys_and_its_own_timeout(self, store: Store) -> None:
        other = store.clone()
        assert other.timeout == store.timeout
        store.set("key", b"value")
        assert other.get("key") == b"value"
        other.set_timeout(_SHORT)
        assert store.timeout != other.timeout
        waiting = _run_in_thread(lambda: store.get("late"))
        other.set("late", b"here")
        assert waiting.result(_PATIENCE) == b"here"

    def test_a_store_says_that_it_has_all_calls(self, store: Store) -> None:
        assert store.has_extended_api()

    def test_an_empty_key_is_refused(self, store: Store) -> None:
        with pytest.raises(ValueError, match="key"):
            store.set("", b"")
        with pytest.raises(ValueError, match="key"):
            store.queue_push("", b"")


def _run_in_thread(call: Callable[[], object]) -> Future[object]:
    """Run `call` on a new thread; return once the thread runs."""
    future: Future[object] = Future()
    running = threading.Event()

    def run() -> None:
        running.set()
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    running.wait()
    return future
