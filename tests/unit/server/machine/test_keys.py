"""The coordinator's key-value store: replies, waits, refusals."""

from typing import get_args

import pytest

from allhands_proto.kv_results import CompareSetResult
from allhands_server.machine import limits
from allhands_server.machine.changes import KeyPut
from allhands_server.machine.refusals import Refusal, Status
from allhands_server.machine.store.keys import (
    _HANDLERS,
    Add,
    Append,
    CompareSet,
    Count,
    Delete,
    Get,
    KeyRequest,
    List,
    MultiGet,
    MultiSet,
    Set,
    Wait,
)
from allhands_server.testing import Transcript


def test_a_key_holds_what_was_set_last() -> None:
    t = Transcript()
    assert t.ask_now(Set("j", "k", b"one")) == 1
    assert t.ask_now(Set("j", "k", b"two")) == 2
    assert t.ask_now(Get("j", "k")) == KeyPut("j", "k", b"two", 2, created=1, version=2)


def test_jobs_do_not_see_each_others_keys() -> None:
    t = Transcript()
    t.ask_now(Set("a", "k", b"a's"))
    assert t.ask_refused(Get("b", "k")).status is Status.NOT_FOUND
    assert t.ask_now(Set("b", "k", b"b's")) == 1


def test_a_get_that_does_not_wait_names_the_key_that_is_not_there() -> None:
    refusal = Transcript().ask_refused(Get("j", "k"))
    assert refusal == Refusal(Status.NOT_FOUND, "job j has no key 'k'")


def test_a_get_that_waits_is_answered_by_the_set() -> None:
    t = Transcript()
    waiting = t.ask(Get("j", "k", wait=True), due=9.0)
    assert waiting not in t.outcomes
    t.ask_now(Set("j", "k", b"v"))
    assert t.outcomes[waiting] == KeyPut("j", "k", b"v", 1, 1, 1)
    assert t.machine.next_due is None


def test_who_waits_for_several_keys_waits_until_all_exist_at_once() -> None:
    t = Transcript()
    waiting = t.ask(Wait("j", ("a", "b", "c")))
    t.ask_now(Set("j", "a", b""))
    t.ask_now(Delete("j", "a"))
    t.ask_now(MultiSet("j", (("b", b""), ("c", b""))))
    assert waiting not in t.outcomes
    t.ask_now(Add("j", "a", 1))
    assert t.outcomes[waiting] is None


def test_a_wait_whose_time_is_over_names_the_keys_that_nobody_set() -> None:
    t = Transcript()
    waiting = t.ask(Wait("j", ("b", "a", "there")), due=2.0)
    t.ask_now(Set("j", "there", b""))
    t.advance_to(2.0)
    assert t.outcomes[waiting] == Refusal(
        Status.DEADLINE_EXCEEDED, "nobody has set 'a', 'b' of job j (2 of 3 keys)"
    )
    t.ask_now(MultiSet("j", (("a", b""), ("b", b""))))


def test_a_set_in_the_instant_of_the_deadline_still_counts() -> None:
    t = Transcript()
    waiting = t.ask(Get("j", "k", wait=True), due=2.0)
    t.now = 2.0
    t.ask(Set("j", "k", b"v"))
    assert t.outcomes[waiting] == KeyPut("j", "k", b"v", 1, 1, 1)


def test_a_wait_that_was_withdrawn_is_not_answered() -> None:
    t = Transcript()
    t.cancel(t.ask(Get("j", "k", wait=True), due=2.0))
    t.ask_now(Set("j", "k", b"v"))
    t.advance_to(3.0)


def test_a_multi_get_gives_the_values_in_the_order_of_its_keys() -> None:
    t = Transcript()
    waiting = t.ask(MultiGet("j", ("b", "a", "b"), wait=True))
    t.ask_now(MultiSet("j", (("a", b"1"), ("b", b"2"))))
    assert t.outcomes[waiting] == (b"2", b"1", b"2")
    assert t.ask_refused(MultiGet("j", ("a", "nope"))).text == "job j has no key 'nope'"


def test_a_multi_set_is_one_revision() -> None:
    t = Transcript()
    assert t.ask_now(MultiSet("j", (("a", b"1"), ("b", b"2")))) == 1
    assert t.ask_now(Get("j", "a")).revision == t.ask_now(Get("j", "b")).revision == 1


def test_add_counts_in_decimal_text() -> None:
    t = Transcript()
    assert t.ask_now(Add("j", "n", 5)) == 5
    assert t.ask_now(Add("j", "n", -7)) == -2
    assert t.ask_now(Get("j", "n")).value == b"-2"
    t.ask_now(Set("j", "n", b"40"))
    assert t.ask_now(Add("j", "n", 2)) == 42


@pytest.mark.parametrize("held", [b"", b"4.5", b"1_0", b" 1", b"\xff", b"9" * 19, b"1" * 30])
def test_add_to_what_is_no_integer_is_refused_and_changes_nothing(held: bytes) -> None:
    t = Transcript()
    t.ask_now(Set("j", "n", held))
    refusal = t.ask_refused(Add("j", "n", 1))
    assert refusal.status is Status.FAILED_PRECONDITION
    assert "'n' of job j" in refusal.text
    assert t.ask_now(Get("j", "n")) == KeyPut("j", "n", held, 1, 1, 1)


def test_add_beyond_64_bits_is_refused() -> None:
    t = Transcript()
    t.ask_now(Add("j", "n", 2**63 - 1))
    assert t.ask_refused(Add("j", "n", 1)).status is Status.FAILED_PRECONDITION
    assert t.ask_now(Add("j", "n", -1)) == 2**63 - 2


def test_compare_set_swaps_what_is_expected_and_tells_what_is_there() -> None:
    t = Transcript()
    assert t.ask_now(CompareSet("j", "k", b"x", b"y")) == CompareSetResult(False, None)
    assert t.ask_now(CompareSet("j", "k", b"", b"one")) == CompareSetResult(True, b"one")
    assert t.ask_now(CompareSet("j", "k", b"x", b"two")) == CompareSetResult(False, b"one")
    assert t.ask_now(CompareSet("j", "k", b"one", b"two")) == CompareSetResult(True, b"two")


def test_a_compare_set_that_swaps_wakes_who_waits() -> None:
    t = Transcript()
    waiting = t.ask(Get("j", "k", wait=True))
    t.ask_now(CompareSet("j", "k", b"no", b"v"))
    assert waiting not in t.outcomes
    t.ask_now(CompareSet("j", "k", b"", b"v"))
    assert t.outcomes[waiting] == KeyPut("j", "k", b"v", 1, 1, 1)


def test_append_begins_with_nothing_and_tells_the_length() -> None:
    t = Transcript()
    assert t.ask_now(Append("j", "k", b"ab")) == 2
    assert t.ask_now(Append("j", "k", b"c")) == 3
    assert t.ask_now(Get("j", "k")).value == b"abc"


def test_delete_tells_whether_there_was_something() -> None:
    t = Transcript()
    t.ask_now(Set("j", "k", b""))
    assert t.ask_now(Delete("j", "k")) is True
    assert t.ask_now(Delete("j", "k")) is False
    assert t.ask_now(Set("j", "k", b"")) == 3


def test_list_is_sorted_and_by_prefix() -> None:
    t = Transcript()
    t.ask_now(MultiSet("j", (("b/2", b""), ("a", b""), ("b/10", b""))))
    assert t.ask_now(List("j", "b/")) == ("b/10", "b/2")
    assert t.ask_now(List("j")) == ("a", "b/10", "b/2")
    assert t.ask_now(Count("j")) == 3


@pytest.mark.parametrize("job", ["", "a b", "a/b", "-a", "a\n", "ä", "x" * 257])
def test_what_is_no_name_of_a_job_is_refused(job: str) -> None:
    t = Transcript()
    assert t.ask_refused(Count(job)).status is Status.INVALID_ARGUMENT


def test_an_empty_key_is_refused_also_among_others() -> None:
    t = Transcript()
    assert t.ask_refused(Set("j", "", b"")) == Refusal(Status.INVALID_ARGUMENT, "the key is empty")
    assert t.ask_refused(Wait("j", ("a", ""))).status is Status.INVALID_ARGUMENT
    assert t.ask_refused(MultiSet("j", (("a", b""), ("", b"")))).status is Status.INVALID_ARGUMENT
    assert t.ask_now(Count("j")) == 0


def test_keys_and_values_have_a_largest_size() -> None:
    t = Transcript()
    longest, largest = "k" * limits.LONGEST_KEY, bytes(limits.LARGEST_VALUE)
    t.ask_now(Set("j", longest, largest))
    refusal = t.ask_refused(Set("j", longest + "k", b""))
    assert "4,097 bytes; 4,096 is the most" in refusal.text
    assert len(refusal.text) < 300
    assert t.ask_refused(Set("j", "k", largest + b"x")).status is Status.INVALID_ARGUMENT
    assert t.ask_refused(Append("j", longest, b"x")).status is Status.INVALID_ARGUMENT


def test_values_that_no_reply_can_hold_are_refused_to_who_asks_not_to_who_sets() -> None:
    t = Transcript()
    half = bytes(limits.LARGEST_REPLY // 2 + 1)
    waiting = t.ask(MultiGet("j", ("a", "b"), wait=True))
    t.ask_now(Set("j", "a", half))
    t.ask_now(Set("j", "b", half))
    outcome = t.outcomes[waiting]
    assert isinstance(outcome, Refusal)
    assert outcome.status is Status.RESOURCE_EXHAUSTED


def test_a_refusal_stays_short_however_many_keys_are_missing() -> None:
    t = Transcript()
    waiting = t.ask(Wait("j", tuple(f"{n:04}" * 50 for n in range(1000))), due=1.0)
    t.advance_to(1.0)
    outcome = t.outcomes[waiting]
    assert isinstance(outcome, Refusal)
    assert "and 992 more" in outcome.text
    assert len(outcome.text) < 1000


def test_every_request_about_keys_has_a_handler() -> None:
    assert {*_HANDLERS} == {*get_args(KeyRequest)}
