"""Blame of failed calls and messages, as transcripts: the first loss, not the effects."""

from allhands.engine.failures.losses import FailureLog
from allhands.errors import AllhandsError


class Failure:
    """An error factory, equal to any factory of the same name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, what: str) -> AllhandsError:
        return AllhandsError(f"{what}: {self.name}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Failure) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


LEFT, RAISED, DIED, CTRL_C = map(Failure, ("left", "raised", "died", "Ctrl-C"))


def test_nothing_is_blamed_before_anything_is_lost() -> None:
    losses = FailureLog()
    assert losses.find_failure(1) is None
    assert losses.find_message_failure(1, [1, 2]) is None


def test_of_two_deaths_the_first_is_blamed() -> None:
    losses = FailureLog()
    assert losses.fail(DIED)
    assert not losses.fail(Failure("died later"))
    assert losses.find_failure(1) == DIED
    assert losses.find_message_failure(1, [1, 2]) == DIED


def test_a_death_does_not_outrank_who_left_before() -> None:
    losses = FailureLog()
    losses.record_departure(2, 10, LEFT, is_fault=False)
    losses.fail(DIED)
    assert losses.find_failure(11) == LEFT
    assert losses.find_message_failure(2, [1, 2]) == LEFT


def test_a_death_is_blamed_for_what_who_left_before_had_completed() -> None:
    losses = FailureLog()
    losses.record_departure(2, 10, LEFT, is_fault=False)
    assert losses.find_failure(10) is None
    losses.fail(DIED)
    assert losses.find_failure(10) == DIED
    assert losses.find_message_failure(1, [1, 2]) == DIED


def test_a_death_that_may_follow_from_an_error_is_not_blamed_in_any_call() -> None:
    losses = FailureLog()
    losses.record_departure(2, 10, RAISED, is_fault=True)
    assert losses.find_failure(10) is None
    assert losses.find_message_failure(1, [1, 2]) is None
    losses.fail(DIED)
    assert losses.find_failure(10) == RAISED
    assert losses.find_message_failure(1, [1, 2]) == RAISED


def test_who_leaves_because_of_an_error_does_not_outrank_a_death_before() -> None:
    losses = FailureLog()
    losses.fail(DIED)
    losses.record_departure(2, 10, RAISED, is_fault=True)
    assert losses.find_failure(11) == losses.find_failure(10) == DIED
    assert losses.find_message_failure(2, [1, 2]) == DIED


def test_a_message_from_anybody_is_lost_with_the_last_who_could_send_it() -> None:
    losses = FailureLog()
    losses.record_departure(2, 0, LEFT, is_fault=False)
    assert losses.find_message_failure(None, [1, 2]) is None
    losses.record_departure(1, 0, Failure("left last"), is_fault=False)
    assert losses.find_message_failure(None, [1, 2]) == Failure("left last")


def test_a_call_that_was_given_up_before_a_death_is_not_blamed_on_it() -> None:
    losses = FailureLog()
    assert losses.record_give_up(5, CTRL_C) == CTRL_C
    assert losses.record_give_up(5, Failure("Ctrl-C there too")) == CTRL_C
    losses.fail(DIED)
    assert losses.find_failure(5) == CTRL_C
    assert losses.find_failure(6) == DIED
    losses.conclude(5)
    assert losses.find_failure(5) == DIED


def test_a_death_before_a_call_was_given_up_is_blamed() -> None:
    losses = FailureLog()
    losses.fail(DIED)
    losses.record_give_up(5, CTRL_C)
    assert losses.find_failure(5) == DIED


def test_who_closes_a_group_is_told_that_and_not_who_left_before() -> None:
    closed = Failure("closed")
    losses = FailureLog()
    losses.record_departure(2, 10, LEFT, is_fault=False)
    assert losses.close(closed)
    assert losses.find_failure(11) == losses.find_failure(1) == closed


def test_a_group_that_has_failed_is_not_taken_for_closed_unless_that_is_to_replace_it() -> None:
    closed = Failure("closed")
    losses = FailureLog()
    losses.fail(DIED)
    assert not losses.close(closed)
    assert losses.find_failure(1) == DIED
    losses.replace(closed)
    assert losses.find_failure(1) == closed


def test_it_knows_who_has_left_and_what_they_had_completed() -> None:
    losses = FailureLog()
    losses.record_departure(2, 10, LEFT, is_fault=False)
    losses.fail(DIED)
    losses.record_departure(1, 11, RAISED, is_fault=True)
    assert losses.has_left(2)
    assert not losses.has_left(0)
    assert list(losses.list_departed()) == [2, 1]
    assert losses.list_last_calls() == [10, 11]
