"""The inbox: incoming messages of collectives, the budget, and frames in pieces."""

import pytest

from allhands.transport.frame import FrameError, FrameKind, MessageKey
from allhands.transport.inbox import MessageMismatch, ReceiveSink
from support.inbox_receiver import (
    BUDGET,
    CHUNK,
    EAGER,
    KEY,
    OTHER,
    PEER,
    SIGNATURE,
    UNASKED,
    Receiver,
    to_point,
)

pytestmark = pytest.mark.usefixtures("miniature")


# ---------------------------------------------------------------- collectives


@pytest.mark.parametrize("payload", [b"", b"hello"])
@pytest.mark.parametrize("posted_first", [False, True])
def test_a_small_message_lands_whoever_is_first(
    receiver: Receiver, payload: bytes, posted_first: bool
) -> None:
    if posted_first:
        receive = receiver.post(KEY, len(payload))
        assert receive.is_open
        receiver.data(KEY, payload)
    else:
        receiver.data(KEY, payload)
        receive = receiver.post(KEY, len(payload))
    assert receive.got == payload
    assert receive.incoming.peer == PEER
    assert receiver.answered() == []
    assert receiver.is_empty


def test_a_large_receive_asks_for_its_message_when_it_is_posted(receiver: Receiver) -> None:
    receive = receiver.post(KEY, 100)
    assert receiver.answered() == [(PEER, FrameKind.CTS, KEY, 100)]
    receiver.say(FrameKind.RTS, KEY, 100)  # crossed
    assert receiver.answered() == []
    receiver.data(KEY, b"a" * 64, total=100, asked=True)
    assert receive.is_open
    receiver.data(KEY, b"b" * 36, total=100, offset=64, asked=True)
    assert receive.got == b"a" * 64 + b"b" * 36
    assert receiver.answered() == []  # and no credit, as nothing came unasked
    assert receiver.is_empty


def test_an_announced_message_is_asked_for_once_somebody_wants_it(receiver: Receiver) -> None:
    for number, total in enumerate((10, 100), 1):  # a small one is announced for want of budget
        receiver.say(FrameKind.RTS, MessageKey(1, number), total)
        assert receiver.answered() == []
        receiver.post(MessageKey(1, number), total)
        assert receiver.answered() == [(PEER, FrameKind.CTS, MessageKey(1, number), total)]


def test_a_small_message_announced_to_a_waiting_receive_is_asked_for(receiver: Receiver) -> None:
    receive = receiver.post(KEY, 10)
    receiver.say(FrameKind.RTS, KEY, 10)
    assert receiver.answered() == [(PEER, FrameKind.CTS, KEY, 10)]
    receiver.data(KEY, b"0123456789", asked=True)
    assert receive.got == b"0123456789"
    assert receiver.is_empty


@pytest.mark.parametrize(("total", "signature"), [(5, 6), (4, SIGNATURE)])
@pytest.mark.parametrize("posted_first", [False, True])
def test_an_unlike_message_is_told_and_nothing_of_it_lands(
    receiver: Receiver, total: int, signature: int, posted_first: bool
) -> None:
    receives = []
    for number, announced in enumerate((False, True), 1):
        key = MessageKey(1, number)
        if posted_first:
            receives.append(receiver.post(key, total, signature))
        if announced:
            receiver.say(FrameKind.RTS, key, 5)
        else:
            receiver.data(key, b"wrong")
        if not posted_first:
            receives.append(receiver.post(key, total, signature))
    for number, receive in enumerate(receives, 1):
        assert receive.ended == [MessageMismatch(PEER, MessageKey(1, number), 5)]
        assert receive.data == b"-" * total
    assert FrameKind.CTS not in [kind for _, kind, _, _ in receiver.answered()]
    assert receiver.is_empty


def test_the_rest_of_an_unlike_message_is_dropped(receiver: Receiver) -> None:
    receive = receiver.post(KEY, 100, signature=6)
    receiver.data(KEY, b"a" * 64, total=100, asked=True)
    assert receive.ended == [MessageMismatch(PEER, KEY, 100)]
    receiver.data(KEY, b"a" * 36, total=100, offset=64, asked=True)
    assert receiver.is_empty


def test_what_comes_for_a_retracted_receive_is_dropped(receiver: Receiver) -> None:
    receive = receiver.post(KEY, 100)
    receiver.data(KEY, b"a" * 64, total=100, asked=True)
    receiver.inbox.cancel_receive(receive.incoming)
    before = bytes(receive.data)
    receiver.data(KEY, b"b" * 36, total=100, offset=64, asked=True)
    assert bytes(receive.data) == before
    assert receive.is_open
    assert receiver.is_empty


def test_messages_of_calls_that_are_over_are_drained_and_credited(receiver: Receiver) -> None:
    receiver.data(KEY, b"x" * 30)
    receiver.say(FrameKind.RTS, MessageKey(1, 1, 1), 100)
    receiver.data(MessageKey(1, 2), b"y" * 10)
    receiver.inbox.forget(1, 1)
    assert set(receiver.inbox._early) == {(PEER, MessageKey(1, 2))}
    receiver.data(MessageKey(1, 1, 2), b"z" * 10)  # late
    receiver.say(FrameKind.RTS, MessageKey(1, 1, 3), 100)
    assert set(receiver.inbox._early) == {(PEER, MessageKey(1, 2))}
    receiver.data(MessageKey(1, 1, 4), b"z" * 20)
    assert receiver.answered() == [(PEER, FrameKind.CREDIT, MessageKey(0, 0), 60)]
    assert receiver.post(MessageKey(1, 2), 10).got == b"y" * 10
    assert receiver.is_empty


def test_other_groups_and_messages_to_a_point_outlive_a_call(receiver: Receiver) -> None:
    receiver.data(MessageKey(2, 1), b"other")
    receiver.data(to_point(1), b"point")
    receiver.inbox.forget(1, 9)
    assert receiver.post(MessageKey(2, 1), 5).got == b"other"
    assert receiver.post_open(PEER, 5).got == b"point"


# ---------------------------------------------------------------- budget


def test_taken_bytes_are_credited_in_steps(receiver: Receiver) -> None:
    for number in range(1, 8):
        receiver.post(MessageKey(1, number), 16)
        receiver.data(MessageKey(1, number), b"x" * 16)
    assert [total for *_, total in receiver.answered()] == [48, 48]


def test_more_than_the_budget_unasked_is_a_protocol_error(receiver: Receiver) -> None:
    for number in range(6):
        receiver.data(MessageKey(1, number + 1), b"x" * EAGER)
    receiver.data(MessageKey(1, 9), b"y", peer=OTHER)  # has a budget of its own
    with pytest.raises(FrameError, match=f"more than {BUDGET} bytes unasked"):
        receiver.data(MessageKey(1, 7), b"x")


def test_a_message_that_was_asked_for_may_come_on_top_of_a_full_budget(receiver: Receiver) -> None:
    for number in range(1, 7):
        receiver.data(to_point(number, tag=1), b"x" * EAGER)
    receiver.say(FrameKind.RTS, to_point(7), 10)
    receive = receiver.post_open(PEER, 10)
    receiver.inbox.cancel_receive(receive.incoming)
    receiver.data(to_point(7), b"x" * 10, asked=True)  # too late for it
    assert receiver.inbox._held_bytes[PEER] == BUDGET


@pytest.mark.parametrize(
    ("key", "payload", "total", "offset"),
    [
        (KEY, b"x" * (UNASKED + 1), UNASKED + 1, 0),
        (to_point(1), b"x" * UNASKED, 4 * UNASKED + 1, 0),
        (KEY, b"x" * 10, 20, 0),
        (KEY, b"x" * 10, 20, 10),
    ],
)
def test_large_or_broken_messages_unasked_are_protocol_errors(
    receiver: Receiver, key: MessageKey, payload: bytes, total: int, offset: int
) -> None:
    with pytest.raises(FrameError, match="unasked"):
        receiver.open(key, len(payload), total=total, offset=offset)
    with pytest.raises(FrameError, match="unasked"):
        receiver.data(key, payload, total=total, offset=offset)


def test_a_gap_in_a_message_is_a_protocol_error(receiver: Receiver) -> None:
    receiver.post(KEY, 100)
    with pytest.raises(FrameError, match="payload at 36"):
        receiver.data(KEY, b"b" * 64, total=100, offset=36, asked=True)


@pytest.mark.parametrize(
    "kind", [FrameKind.CTS, FrameKind.NACK, FrameKind.CREDIT, FrameKind.BYE, FrameKind.CALL]
)
def test_frames_for_others_are_protocol_errors(receiver: Receiver, kind: FrameKind) -> None:
    with pytest.raises(FrameError, match=f"kind {kind.name} is not for the inbox"):
        receiver.say(kind, KEY, 0)


# ---------------------------------------------------------------- frames that come in pieces


def feed(arrival: ReceiveSink | None, payload: bytes) -> int:
    assert arrival is not None
    return arrival.feed(memoryview(payload))


def test_a_payload_lands_as_it_comes(receiver: Receiver) -> None:
    receive = receiver.post(KEY, 8)
    arrival = receiver.open(KEY, 8)
    assert feed(arrival, b"abc") == 3
    assert bytes(receive.data) == b"abc-----"
    assert receive.is_open
    assert feed(arrival, b"defgh") == 5
    assert receive.got == b"abcdefgh"
    assert receiver.is_empty


def test_frames_of_a_large_message_land_one_after_the_other(receiver: Receiver) -> None:
    receive = receiver.post(KEY, 2 * CHUNK)
    for at in (0, CHUNK):
        arrival = receiver.open(KEY, CHUNK, total=2 * CHUNK, offset=at, asked=True)
        feed(arrival, bytes([at]) * CHUNK)
    assert receive.got == bytes(CHUNK) + bytes([CHUNK]) * CHUNK
    assert receiver.answered() == [(PEER, FrameKind.CTS, KEY, 2 * CHUNK)]


def test_elements_land_whole(receiver: Receiver) -> None:
    receive = receiver.post(KEY, 12, grain=4)
    arrival = receiver.open(KEY, 12)
    assert feed(arrival, b"abc") == 0
    assert feed(arrival, b"abcdef") == 4
    assert bytes(receive.data) == b"abcd--------"
    assert feed(arrival, b"efghijkl") == 8
    assert receive.got == b"abcdefghijkl"


@pytest.mark.parametrize(("offset", "length"), [(0, 10), (2, 8)])
def test_a_frame_cut_within_an_element_is_a_protocol_error(
    receiver: Receiver, offset: int, length: int
) -> None:
    receive = receiver.post(KEY, CHUNK, grain=4)
    receive.incoming.missing = CHUNK - offset
    with pytest.raises(FrameError, match="within an element"):
        receiver.open(KEY, length, total=CHUNK, offset=offset, asked=True)


def test_what_needs_no_change_is_written_where_it_belongs(receiver: Receiver) -> None:
    receive = receiver.post(KEY, 2 * CHUNK, has_room=True)
    for at in (0, CHUNK):
        arrival = receiver.open(KEY, CHUNK, total=2 * CHUNK, offset=at, asked=True)
        assert arrival is not None
        room = arrival.room()
        assert room is not None
        assert len(room) == CHUNK
        room[:5] = b"hello"
        arrival.filled(5)
        room = arrival.room()
        assert room is not None
        room[:] = b"!" * (CHUNK - 5)
        arrival.filled(CHUNK - 5)
    assert receive.got == (b"hello" + b"!" * (CHUNK - 5)) * 2


def test_nothing_lands_after_the_receive_was_retracted_in_the_middle(receiver: Receiver) -> None:
    receive = receiver.post(KEY, UNASKED, has_room=True)
    arrival = receiver.open(KEY, UNASKED)
    feed(arrival, b"abc")
    receiver.inbox.cancel_receive(receive.incoming)
    assert arrival is not None
    assert arrival.room() is None
    assert feed(arrival, b"x" * (UNASKED - 3)) == UNASKED - 3
    assert bytes(receive.data) == b"abc" + b"-" * (UNASKED - 3)
    assert receive.is_open
    assert receiver.answered() == [(PEER, FrameKind.CREDIT, MessageKey(0, 0), UNASKED)]


def test_the_rest_of_a_message_nobody_waits_for_any_more_goes_nowhere(receiver: Receiver) -> None:
    arrival = receiver.open(KEY, CHUNK, total=2 * CHUNK, asked=True)
    assert arrival is not None
    assert arrival.room() is None
    assert feed(arrival, bytes(CHUNK)) == CHUNK
    assert receiver.is_empty


def test_another_message_than_expected_is_told_before_it_has_come(receiver: Receiver) -> None:
    receive = receiver.post(KEY, 8)
    arrival = receiver.open(KEY, 8, signature=6)
    assert receive.ended == [MessageMismatch(PEER, KEY, 8)]
    assert feed(arrival, b"x" * 8) == 8
    assert bytes(receive.data) == b"-" * 8


def test_what_nobody_has_posted_yet_is_to_be_gathered(receiver: Receiver) -> None:
    assert receiver.open(KEY, UNASKED) is None
    assert receiver.open(to_point(1), EAGER) is None


def test_more_unasked_than_the_budget_is_refused_before_it_has_come(receiver: Receiver) -> None:
    for number in range(4):
        receiver.data(MessageKey(1, number + 1), b"x" * UNASKED)
    with pytest.raises(FrameError, match="more than 192 bytes unasked"):
        receiver.open(MessageKey(1, 9), 1)
