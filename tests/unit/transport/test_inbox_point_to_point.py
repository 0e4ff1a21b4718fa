"""The inbox's point-to-point messages: order, tags, retracted and withdrawn receives."""

import pytest

from allhands.transport.frame import FrameError, FrameKind
from allhands.transport.inbox import MessageMismatch
from support.inbox_receiver import OTHER, PEER, Receiver, to_point

pytestmark = pytest.mark.usefixtures("miniature")


# ---------------------------------------------------------------- point to point


def test_messages_of_a_tag_are_received_in_the_order_sent(receiver: Receiver) -> None:
    receiver.data(to_point(1), b"1")
    receiver.say(FrameKind.RTS, to_point(2), 100)
    receiver.data(to_point(3), b"3")
    first, second, third = (receiver.post_open(PEER, total) for total in (1, 100, 1))
    assert (first.got, third.got) == (b"1", b"3")
    assert second.is_open
    assert receiver.answered() == [(PEER, FrameKind.CTS, to_point(2), 100)]
    receiver.data(to_point(2), b"x" * 64, total=100, asked=True)
    receiver.data(to_point(2), b"x" * 36, total=100, offset=64, asked=True)
    assert second.got == b"x" * 100
    assert receiver.is_empty


def test_receives_of_a_tag_are_served_in_the_order_posted(receiver: Receiver) -> None:
    receives = [receiver.post_open(source, 1) for source in (OTHER, None, PEER, None)]
    receiver.data(to_point(1), b"1")
    receiver.data(to_point(2), b"2")
    receiver.data(to_point(1), b"3", peer=OTHER)
    receiver.data(to_point(2), b"4", peer=OTHER)
    assert [receive.got for receive in receives] == [b"3", b"1", b"2", b"4"]
    assert [receive.incoming.peer for receive in receives] == [OTHER, PEER, PEER, OTHER]
    assert receiver.is_empty


def test_a_tag_and_a_group_each_have_a_line_of_their_own(receiver: Receiver) -> None:
    receiver.data(to_point(1, tag=7), b"7")
    receiver.data(to_point(1)._replace(group=2), b"2")
    receiver.data(to_point(2), b"0")
    assert receiver.post_open(None, 1).got == b"0"
    assert receiver.post_open(None, 1, tag=7).got == b"7"
    assert receiver.post_open(None, 1).is_open


@pytest.mark.parametrize("kind", ["data", "announcement"])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_message_to_a_point_out_of_turn_is_a_protocol_error(
    receiver: Receiver, kind: str, number: int
) -> None:
    receive = [receiver.post_open(PEER, 1) for _ in range(3)]
    receiver.data(to_point(1), b"1")
    receiver.data(to_point(2), b"2")
    say = {
        "data": lambda: receiver.data(to_point(number), b"3"),
        "announcement": lambda: receiver.say(FrameKind.RTS, to_point(number), 1),
    }
    with pytest.raises(FrameError, match=f"message {number} to a point came after message 2"):
        say[kind]()
    assert receive[2].is_open


PIECES = ((0, b"a" * 48), (48, b"b" * 48), (96, b"c" * 4))
"""A message that comes unasked in several frames: where each begins, and what is in it."""
WHOLE = b"".join(payload for _, payload in PIECES)


@pytest.mark.parametrize("posted_after", range(len(PIECES) + 1))
def test_a_message_unasked_in_several_frames_lands_whoever_is_first(
    receiver: Receiver, posted_after: int
) -> None:
    receive = None
    for number, (offset, payload) in enumerate(PIECES):
        if number == posted_after:
            receive = receiver.post_open(PEER, len(WHOLE))
        receiver.data(to_point(1), payload, total=len(WHOLE), offset=offset)
    receive = receive or receiver.post_open(PEER, len(WHOLE))
    assert receive.got == WHOLE
    assert receiver.is_empty
    credited = sum(nbytes for *_, nbytes in receiver.answered())
    assert credited + receiver.inbox._uncredited[PEER] == len(WHOLE)


def test_receives_of_all_but_its_first_frame_are_of_other_messages(receiver: Receiver) -> None:
    first, second = receiver.post_open(None, len(WHOLE)), receiver.post_open(None, 1)
    for offset, payload in PIECES[:2]:
        receiver.data(to_point(1), payload, total=len(WHOLE), offset=offset)
    receiver.data(to_point(1), b"2", peer=OTHER)
    receiver.data(to_point(1), PIECES[2][1], total=len(WHOLE), offset=96)
    assert (first.got, second.got) == (WHOLE, b"2")


@pytest.mark.parametrize("is_unlike", [True, False])
def test_the_rest_of_a_message_that_nobody_takes_is_dropped_and_credited(
    receiver: Receiver, is_unlike: bool
) -> None:
    """Its receive wanted another, or was retracted."""
    receive = receiver.post_open(PEER, 1 if is_unlike else len(WHOLE))
    for number, (offset, payload) in enumerate(PIECES):
        receiver.data(to_point(1), payload, total=len(WHOLE), offset=offset)
        if number == 0 and not is_unlike:
            receiver.inbox.cancel_receive(receive.incoming)
    assert receive.ended == ([MessageMismatch(PEER, to_point(1), len(WHOLE))] if is_unlike else [])
    assert receiver.is_empty
    assert receiver.inbox._uncredited[PEER] + sum(n for *_, n in receiver.answered()) == len(WHOLE)
    receiver.data(to_point(2), b"2")
    assert receiver.post_open(PEER, 1).got == b"2"


def test_frames_of_a_message_that_are_not_in_line_are_a_protocol_error(receiver: Receiver) -> None:
    with pytest.raises(FrameError, match="message 1 to a point goes on before it began"):
        receiver.data(to_point(1), b"b" * 48, total=100, offset=48)
    receiver.data(to_point(1), b"a" * 48, total=100)
    for total, offset in ((100, 49), (101, 48)):
        with pytest.raises(FrameError, match=f"payload at {offset}, 48 have come"):
            receiver.data(to_point(1), b"b" * 48, total=total, offset=offset)


def test_messages_in_several_frames_are_not_given_to_calls_that_read_links(
    receiver: Receiver,
) -> None:
    for offset, payload in PIECES:
        receiver.data(to_point(1), payload, total=len(WHOLE), offset=offset)
        assert receiver.inbox.take_early_messages(1, [PEER]) is None
    assert receiver.post_open(PEER, len(WHOLE)).got == WHOLE
    receiver.data(to_point(2), b"2")
    assert receiver.inbox.take_early_messages(1, [PEER]) is not None


def test_an_unlike_message_to_a_point_takes_its_receive_with_it(receiver: Receiver) -> None:
    first, second = receiver.post_open(PEER, 2), receiver.post_open(PEER, 1)
    receiver.data(to_point(1), b"1")
    assert first.ended == [MessageMismatch(PEER, to_point(1), 1)]
    assert second.is_open
    receiver.data(to_point(2), b"2")
    assert second.got == b"2"


def test_a_retracted_receive_leaves_its_place_to_the_next(receiver: Receiver) -> None:
    first, second = receiver.post_open(None, 1), receiver.post_open(None, 1)
    receiver.inbox.cancel_receive(first.incoming)
    receiver.data(to_point(1), b"1")
    assert first.is_open
    assert second.got == b"1"
    assert receiver.is_empty


def test_a_withdrawn_announcement_is_forgotten(receiver: Receiver) -> None:
    receiver.say(FrameKind.RTS, to_point(1), 100)
    receiver.say(FrameKind.CANCEL, to_point(1), 0)
    assert receiver.is_empty
    assert receiver.post_open(PEER, 100).is_open
    assert receiver.answered() == []


def test_the_receive_of_a_withdrawn_message_is_open_to_all_it_was_open_to(
    receiver: Receiver,
) -> None:
    receive = receiver.post_open(None, 100)
    receiver.say(FrameKind.RTS, to_point(1), 100)
    receiver.data(to_point(1), b"a" * 64, total=100, asked=True)
    receiver.say(FrameKind.CANCEL, to_point(1), 0)
    assert receive.is_open
    receiver.say(FrameKind.RTS, to_point(1), 100, peer=OTHER)
    receiver.data(to_point(1), b"b" * 64, peer=OTHER, total=100, asked=True)
    receiver.data(to_point(1), b"c" * 36, peer=OTHER, total=100, offset=64, asked=True)
    assert receive.got == b"b" * 64 + b"c" * 36
    assert receive.incoming.peer == OTHER


def test_receives_of_withdrawn_messages_keep_the_order_posted(receiver: Receiver) -> None:
    receives = [receiver.post_open(None, 100) for _ in range(3)]
    for number in (1, 2):
        receiver.say(FrameKind.RTS, to_point(number), 100)
    for number in (1, 2):
        receiver.say(FrameKind.CANCEL, to_point(number), 0)
    for number in (3, 4, 5):
        receiver.say(FrameKind.RTS, to_point(number), 100)
        receiver.data(to_point(number), b"%d" % number * 64, total=100, asked=True)
        receiver.data(to_point(number), b"%d" % number * 36, total=100, offset=64, asked=True)
    assert [receive.got for receive in receives] == [b"3" * 100, b"4" * 100, b"5" * 100]


def test_the_receive_of_a_withdrawn_message_takes_what_came_meanwhile(receiver: Receiver) -> None:
    receive = receiver.post_open(PEER, 10)
    receiver.say(FrameKind.RTS, to_point(1), 10)
    receiver.data(to_point(2), b"0123456789")
    receiver.say(FrameKind.CANCEL, to_point(1), 0)
    assert receive.got == b"0123456789"
    assert receiver.is_empty
