"""Matching of messages with receives: order, wildcards, what is taken back."""

from dataclasses import dataclass

from allhands.mpi.constants import ANY_SOURCE, ANY_TAG
from allhands.mpi.progress.matching import MatchTable


@dataclass(eq=False)
class Message:
    source: int
    tag: int


@dataclass(eq=False)
class Receive:
    wanted_source: int
    wanted_tag: int


def _table() -> "MatchTable[Message, Receive]":
    return MatchTable()


def test_a_message_goes_to_the_first_receive_that_fits() -> None:
    table = _table()
    receives = [Receive(2, 1), Receive(ANY_SOURCE, 1), Receive(1, ANY_TAG)]
    for receive in receives:
        assert table.match_receive(5, receive) is None
    assert table.posted_count == 3
    assert table.match_message(5, Message(1, 1)) is receives[1]
    assert table.match_message(5, Message(1, 1)) is receives[2]
    assert table.match_message(5, Message(1, 1)) is None
    assert table.match_message(5, Message(2, 1)) is receives[0]
    assert table.posted_count == 0


def test_a_receive_gets_the_first_message_that_fits() -> None:
    table = _table()
    first, second, third = Message(0, 7), Message(1, 7), Message(0, 8)
    for message in (first, second, third):
        assert table.match_message(1, message) is None
    assert table.find(1, ANY_SOURCE, ANY_TAG) is first
    assert table.match_receive(1, Receive(ANY_SOURCE, 8)) is third
    assert table.match_receive(1, Receive(1, ANY_TAG)) is second
    assert table.take(1, ANY_SOURCE, 7) is first
    assert table.take(1, ANY_SOURCE, 7) is None


def test_communicators_do_not_see_each_others_messages() -> None:
    table = _table()
    assert table.match_message(1, Message(0, 0)) is None
    assert table.find(2, ANY_SOURCE, ANY_TAG) is None
    assert table.match_receive(2, Receive(0, 0)) is None
    table.forget(2)
    assert table.posted_count == 0
    assert table.match_message(2, Message(0, 0)) is None


def test_a_receive_is_taken_back_once_and_itself() -> None:
    table = _table()
    one, other = Receive(0, 0), Receive(0, 0)
    table.match_receive(1, one)
    table.match_receive(1, other)
    assert table.withdraw(1, one)
    assert not table.withdraw(1, one)
    assert table.match_message(1, Message(0, 0)) is other
    assert not table.withdraw(1, other)


def test_a_receive_is_restored_before_all_others() -> None:
    table = _table()
    first, second = Receive(ANY_SOURCE, 1), Receive(ANY_SOURCE, 1)
    for receive in (first, second):
        table.match_receive(5, receive)
    assert table.is_first(5, first)
    assert not table.is_first(5, second)
    assert table.withdraw(5, first)
    assert table.posted_count == 1
    assert table.restore(5, first) is None
    assert table.posted_count == 2
    assert table.match_message(5, Message(1, 1)) is first


def test_a_receive_that_is_restored_takes_what_has_come_meanwhile() -> None:
    table = _table()
    receive, other, own = Receive(ANY_SOURCE, ANY_TAG), Message(0, 3), Message(0, 4)
    table.match_receive(5, receive)
    assert table.withdraw(5, receive)
    for message in (other, own):
        assert table.match_message(5, message) is None
    assert table.restore(5, receive) is other
    assert table.posted_count == 0
    assert not table.is_first(5, receive)
    assert not table.withdraw(5, receive), "it has its message"
