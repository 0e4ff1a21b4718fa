"""Steps of recipes, and what is read from their keys."""

from collections.abc import Callable
from typing import Any

import pytest

from allhands.coordinator.kv.records import KeyEvent, KeyRange, KeyRecord
from allhands.coordinator.recipes.leadership import Leader, LeaderTracker
from allhands.coordinator.recipes.queue_name import QueueName
from allhands.coordinator.recipes.session import Session, read_identity
from allhands.coordinator.recipes.standing import make_status
from allhands.coordinator.recipes.steps import Pause, Step, Steps, run_steps


def perform_with(*outcomes: Any) -> Callable[[Step], Any]:
    """Return a way to carry out steps, with a result or an error for each."""
    left = list(outcomes)

    def perform(_: Step) -> Any:
        outcome = left.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return perform


def test_a_recipe_hears_of_what_a_step_raises_and_may_go_on() -> None:
    done: list[Any] = []

    def ask_twice() -> Steps[str]:
        try:
            yield Pause(0)
        except KeyboardInterrupt:
            done.append((yield Pause(0)))
            raise
        return "never"

    with pytest.raises(KeyboardInterrupt):
        run_steps(ask_twice(), perform_with(KeyboardInterrupt(), "tidied"))
    assert done == ["tidied"]

    def ask() -> Steps[str]:
        first = yield Pause(0)
        try:
            yield Pause(0)
        except ValueError:
            return f"{first} and no more"
        return "never"

    assert run_steps(ask(), perform_with("one", ValueError())) == "one and no more"


def test_a_recipe_s_own_error_ends_it() -> None:
    def fail() -> Steps[None]:
        yield Pause(0)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        run_steps(fail(), perform_with(None))


def put(key: str, created: int, value: bytes = b"", revision: int = 0) -> KeyEvent:
    return KeyEvent(KeyRecord(key, value, created, revision or created, 1))


def delete(key: str, revision: int) -> KeyEvent:
    return KeyEvent(KeyRecord(key, b"", 0, revision, 0), is_deletion=True)


def test_the_oldest_candidate_leads_and_each_change_is_told_once() -> None:
    tracker = LeaderTracker(
        KeyRange(3, (put("b", 3, b"B").record, put("c", 2, b"C").record), 2, False)
    )
    assert tracker.leader == Leader(b"C", "c", 2, 2)
    assert tracker.take(put("a", 4), is_last=True) is None
    assert tracker.take(put("c", 2, b"again", 5), is_last=True) == Leader(b"again", "c", 2, 5)
    assert tracker.take(delete("a", 6), is_last=True) is None
    assert tracker.take(delete("c", 7), is_last=True) == Leader(b"B", "b", 3, 3)
    assert tracker.take(delete("b", 8), is_last=True) is None
    assert [tracker.leader] == [None]
    assert tracker.take(put("d", 9, b"D"), is_last=True) == Leader(b"D", "d", 9, 9)


def test_nobody_leads_between_two_events_of_one_revision() -> None:
    candidates = tuple(put(key, n).record for n, key in enumerate("abc", 1))
    tracker = LeaderTracker(KeyRange(3, candidates, 3, False))
    assert tracker.take(delete("a", 4), is_last=False) is None
    assert tracker.take(delete("b", 4), is_last=True) == Leader(b"", "c", 3, 3)


def test_the_keys_of_two_names_have_no_common_prefix() -> None:
    names = ["a", "a/b", "a%2Fb", "a%", "a/"]
    prefixes = [QueueName("j", "lock", name).prefix for name in names]
    prefixes.append(QueueName("j", "election", "a").prefix)
    for one in prefixes:
        assert [other for other in prefixes if other.startswith(one)] == [one]


def test_the_loss_of_a_session_is_told_to_all_once_they_wait() -> None:
    session = Session(1, 10.0)
    ended: list[str] = []
    with session.hold(lambda: ended.append("first")):
        session.lose()
    with session.hold(lambda: ended.append("second")):
        pass
    session.lose()
    assert ended == ["first", "second"]


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{", b'{"host": 3, "pid": 4}', b'{"host": "h"}', b"[" * 100_000, b"\xff"]
)
def test_a_key_that_another_wrote_says_nothing(value: bytes) -> None:
    record = KeyRecord("k", value, 1, 1, 1)
    assert read_identity(record).host == ""
    status = make_status(QueueName("j", "lock", "l"), 3, [record], None)
    assert (status.holders[0].since, status.waiting) == (None, 2)
    assert str(status.holders[0]) == "key 'k'"


def test_a_holder_s_host_is_escaped() -> None:
    record = KeyRecord("k", b'{"host": "a\\u001b[31m", "pid": 4}', 1, 1, 1)
    assert read_identity(record).host == "a\\x1b[31m"
