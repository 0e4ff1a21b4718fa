"""Messages that came before their calls began."""

import pytest

from allhands.transport.early_calls import EarlyCalls, EarlyMessage
from allhands.transport.frame import FrameKind, Header, MessageKey


def message(sequence: int, peer: int = 1, step: int = 0, nbytes: int | None = 10) -> EarlyMessage:
    key = MessageKey(5, sequence, step)
    return EarlyMessage(
        peer, Header(FrameKind.DATA, key, 0, 0), None if nbytes is None else bytes(nbytes)
    )


def make(*messages: EarlyMessage) -> EarlyCalls:
    early = EarlyCalls()
    for one in messages:
        early.add(one)
    return early


def sequences(found: "list[EarlyMessage] | None") -> list[int]:
    assert found is not None
    return [one.header.key.sequence for one in found]


def test_messages_are_taken_in_the_order_of_their_calls() -> None:
    """Those that were put back and came back again stand behind those of later calls."""
    early = make(message(3), message(4), message(2), message(2, step=1))
    assert sequences(early.take(5, range(1, 4), [1])) == [2, 2, 3]
    assert [key.sequence for _, key in early] == [4]
    assert early.take(6, range(9), [1]) == []


@pytest.mark.parametrize("other", [message(2, peer=9), message(2, nbytes=None)])
def test_nothing_is_taken_where_one_cannot_be(other: EarlyMessage) -> None:
    early = make(message(1), other)
    assert early.take(5, range(1, 3), [1]) is None
    assert len(early) == 2


def test_calls_up_to_one_that_was_announced_are_taken_at_once_and_not_too_many_bytes() -> None:
    early = make(message(1), message(2), message(3, nbytes=None), message(4))
    assert early.limit(5, range(1, 9), 100) == range(1, 3)
    assert early.limit(5, range(1, 9), 15) == range(1, 2)
    assert early.limit(5, range(1, 9), 5) == range(1, 2)
    assert early.limit(5, range(4, 9), 100) == range(4, 9)
    assert early.limit(6, range(4, 9), 0) == range(4, 9)


@pytest.mark.parametrize("ahead", [3, 500])
def test_messages_of_calls_that_are_over_are_taken_away(ahead: int) -> None:
    early = make(*(message(sequence) for sequence in range(1, ahead + 3)))
    assert sequences(list(early.take_until(5, ahead, 0))) == list(range(1, ahead + 1))
    assert sorted(key.sequence for _, key in early) == [ahead + 1, ahead + 2]
    assert early.pop(1, MessageKey(5, ahead + 1, 0)) is not None
    assert early.pop(1, MessageKey(5, ahead + 1, 0)) is None
