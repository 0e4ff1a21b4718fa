"""Queues of the coordinator: receivers, waits, refusals."""

import pytest

from allhands_server.machine import limits
from allhands_server.machine.refusals import Status
from allhands_server.machine.store.queues import QueueLength, QueuePop, QueuePush
from allhands_server.testing import Transcript


def test_values_are_popped_in_the_order_in_which_they_were_pushed() -> None:
    t = Transcript()
    assert [t.ask_now(QueuePush("j", "q", b"%d" % n)) for n in range(3)] == [1, 2, 3]
    assert [t.ask_now(QueuePop("j", "q")) for _ in range(3)] == [b"0", b"1", b"2"]
    assert t.ask_now(QueueLength("j", "q")) == 0


def test_queues_of_other_names_and_jobs_are_others() -> None:
    t = Transcript()
    t.ask_now(QueuePush("j", "q", b"v"))
    assert t.ask_now(QueueLength("j", "r")) == 0
    assert t.ask_now(QueueLength("k", "q")) == 0


def test_who_waits_longest_is_served_first_and_the_value_is_gone() -> None:
    t = Transcript()
    first, second = (t.ask(QueuePop("j", "q", wait=True)) for _ in range(2))
    assert t.ask_now(QueuePush("j", "q", b"one")) == 0
    assert t.outcomes[first] == b"one"
    assert second not in t.outcomes
    assert t.ask_now(QueueLength("j", "q")) == 0
    t.ask_now(QueuePush("j", "q", b"two"))
    assert t.outcomes[second] == b"two"


def test_who_gave_up_or_was_late_takes_nothing() -> None:
    t = Transcript()
    gone = t.ask(QueuePop("j", "q", wait=True))
    late = t.ask(QueuePop("j", "q", wait=True), due=2.0)
    t.cancel(gone)
    t.advance_to(3.0)
    refusal = t.outcomes[late]
    assert refusal.status is Status.DEADLINE_EXCEEDED  # type: ignore[attr-defined]
    assert "'q' of job j" in refusal.text  # type: ignore[attr-defined]
    assert t.ask_now(QueuePush("j", "q", b"v")) == 1
    assert gone not in t.outcomes


def test_a_pop_that_does_not_wait_is_refused_where_there_is_nothing() -> None:
    assert Transcript().ask_refused(QueuePop("j", "q")).status is Status.NOT_FOUND


@pytest.mark.parametrize(
    "request_", [QueuePush("j", "", b""), QueuePop("j", ""), QueueLength("j", "")]
)
def test_a_queue_has_a_name(request_: object) -> None:
    assert Transcript().ask_refused(request_).status is Status.INVALID_ARGUMENT  # type: ignore[arg-type]


def test_a_value_that_is_too_large_is_refused() -> None:
    push = QueuePush("j", "q", b"x" * (limits.LARGEST_VALUE + 1))
    assert Transcript().ask_refused(push).status is Status.INVALID_ARGUMENT
