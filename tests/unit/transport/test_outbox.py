"""The outbox: frames allowed to a peer, in order."""

from collections.abc import Callable

import pytest

from allhands.transport.frame import (
    HEADER_BYTES,
    Frame,
    FrameError,
    FrameKind,
    Header,
    MessageKey,
    unpack,
    whole,
)
from allhands.transport.outbox import Outbox, PendingSend

CHUNK, EAGER, UNASKED, BUDGET = 64, 32, 48, 192
"""As the miniature world has them."""

pytestmark = pytest.mark.usefixtures("miniature")


class Sender:
    """An outbox and the notifications of messages."""

    def __init__(self, offer: Callable[[Frame], bool] = lambda _: False) -> None:
        self.outbox = Outbox(offer)
        self.told: dict[MessageKey, bool] = {}

    def push(self, number: int, total: int, *, to_point: bool = False) -> PendingSend:
        key = MessageKey(1, number, is_p2p=to_point)
        payload = bytes(number for _ in range(total))
        message = PendingSend(
            key, [memoryview(payload)], 5, lambda like: self.told.__setitem__(key, like)
        )
        self.outbox.push(message)
        return message

    def clear(self, message: PendingSend, *, signature: int = 5) -> None:
        self.outbox.on_cts(Header(FrameKind.CTS, message.key, signature, message.total))

    def frames(self) -> list[tuple[Header, bytes]]:
        """Take all frames allowed now."""
        found = []
        while (frame := self.outbox.next_frame()) is not None:
            self.outbox.finish_frame()
            text = whole(frame)
            found.append((unpack(text), text[HEADER_BYTES:]))
        return found

    def take(self) -> bytes:
        """Take a frame, as a link does."""
        frame = self.outbox.next_frame()
        assert frame is not None
        text = whole(frame)
        self.outbox.finish_frame()
        return text

    def shapes(self) -> list[tuple[FrameKind, int, int, int]]:
        """Take all frames; return kind, number of the message, offset and length of each."""
        return [(it.kind, it.key.sequence, it.offset, it.length) for it, _ in self.frames()]


@pytest.fixture
def sender() -> Sender:
    return Sender()


def test_a_small_message_goes_unasked_and_at_once(sender: Sender) -> None:
    for number, total in enumerate((0, 1, EAGER)):
        message = sender.push(number, total)
        assert sender.told[message.key] is True
        ((header, payload),) = sender.frames()
        assert header == Header(FrameKind.DATA, message.key, 5, total, 0, total)
        assert payload == bytes([number]) * total
    assert sender.outbox.is_idle


def test_its_memory_may_change_as_soon_as_that_is_said(sender: Sender) -> None:
    data = bytearray(b"before")
    sender.outbox.push(PendingSend(MessageKey(1, 1), [memoryview(data)], 5, lambda like: None))
    data[:] = b"after!"
    assert sender.frames()[0][1] == b"before"


def test_a_larger_message_is_announced_and_waits_to_be_asked_for(sender: Sender) -> None:
    message = sender.push(1, 2 * CHUNK + 8)
    ((header, _),) = sender.frames()
    assert header == Header(FrameKind.RTS, message.key, 5, 2 * CHUNK + 8)
    assert not sender.outbox.is_idle
    assert sender.told == {}
    sender.clear(message)
    frames = sender.frames()
    assert [(it.offset, it.length, it.is_cleared) for it, _ in frames] == [
        (0, CHUNK, True),
        (CHUNK, CHUNK, True),
        (2 * CHUNK, 8, True),
    ]
    assert sender.told == {message.key: True}
    assert sender.outbox.is_idle


def test_who_asked_before_is_served_without_an_announcement(sender: Sender) -> None:
    sender.outbox.on_cts(Header(FrameKind.CTS, MessageKey(1, 1), 5, CHUNK))
    sender.push(1, CHUNK)
    assert sender.shapes() == [(FrameKind.DATA, 1, 0, CHUNK)]


def test_it_is_not_done_before_its_last_bytes_are_copied(sender: Sender) -> None:
    message = sender.push(1, 2 * CHUNK)
    sender.clear(message)
    sender.take()
    sender.take()
    assert sender.told == {}
    sender.take()
    assert sender.told == {message.key: True}


def test_a_message_of_many_views_is_cut_regardless_of_them(sender: Sender) -> None:
    parts = [bytes([number]) * length for number, length in enumerate((0, 50, 1, 100, 0, 30))]
    told: list[bool] = []
    message = PendingSend(MessageKey(1, 1), [memoryview(part) for part in parts], 5, told.append)
    sender.outbox.push(message)
    sender.clear(message)
    _, *frames = sender.frames()
    assert b"".join(payload for _, payload in frames) == b"".join(parts)
    assert [len(payload) for _, payload in frames] == [64, 64, 53]
    assert told == [True]


def test_large_messages_take_turns_and_small_ones_pass_them(sender: Sender) -> None:
    for message in (sender.push(1, 2 * CHUNK), sender.push(2, 2 * CHUNK)):
        sender.clear(message)
    assert sender.shapes()[:3] == [
        (FrameKind.RTS, 1, 0, 0),
        (FrameKind.RTS, 2, 0, 0),
        (FrameKind.DATA, 1, 0, CHUNK),
    ]
    for message in (sender.push(3, 2 * CHUNK), sender.push(4, 2 * CHUNK)):
        sender.clear(message)
    sender.frames()
    first, second = sender.push(5, 2 * CHUNK), sender.push(6, 2 * CHUNK)
    sender.clear(second)
    sender.clear(first)
    assert sender.take()
    assert sender.take()
    assert sender.take()  # the first chunk of the second
    sender.push(7, 1)
    assert [shape[:3] for shape in sender.shapes()] == [
        (FrameKind.DATA, 7, 0),
        (FrameKind.DATA, 5, 0),
        (FrameKind.DATA, 6, CHUNK),
        (FrameKind.DATA, 5, CHUNK),
    ]


def test_beyond_the_budget_small_messages_wait_too_until_there_is_credit(sender: Sender) -> None:
    for number in range(6):
        sender.push(number, EAGER)
    waiting = sender.push(6, 1)
    assert [shape[0] for shape in sender.shapes()] == [FrameKind.DATA] * 6 + [FrameKind.RTS]
    assert waiting.key not in sender.told
    sender.outbox.add_credit(EAGER)
    sender.push(7, EAGER)
    assert sender.shapes() == [(FrameKind.DATA, 7, 0, EAGER)]
    sender.clear(waiting)
    ((header, _),) = sender.frames()
    assert header.is_cleared
    assert sender.told[waiting.key] is True


def test_a_small_message_that_was_asked_for_costs_no_budget(sender: Sender) -> None:
    for number in range(6):
        sender.push(number, EAGER)
    sender.clear(sender.push(6, EAGER))
    sender.frames()
    sender.outbox.add_credit(BUDGET)
    with pytest.raises(FrameError, match="more than was sent"):
        sender.outbox.add_credit(1)


def test_an_empty_message_needs_no_budget(sender: Sender) -> None:
    for number in range(6):
        sender.push(number, EAGER)
    assert sender.told[sender.push(9, 0).key] is True


def test_credit_for_more_than_was_sent_is_a_protocol_error(sender: Sender) -> None:
    sender.push(1, 10)
    with pytest.raises(FrameError, match="credit of 11 bytes"):
        sender.outbox.add_credit(11)
    sender.outbox.add_credit(10)


@pytest.mark.parametrize("asked_first", [False, True])
def test_a_receiver_that_expects_another_message_gets_nothing(
    sender: Sender, asked_first: bool
) -> None:
    for number, (signature, total) in enumerate([(6, CHUNK), (5, CHUNK + 1)], 1):
        clear = Header(FrameKind.CTS, MessageKey(1, number), signature, total)
        if asked_first:
            sender.outbox.on_cts(clear)
            message = sender.push(number, CHUNK)
        else:
            message = sender.push(number, CHUNK)
            sender.outbox.on_cts(clear)
        assert sender.told[message.key] is False
        assert FrameKind.DATA not in [shape[0] for shape in sender.shapes()]
    assert sender.outbox.is_idle


def test_a_withdrawn_message_is_never_sent(sender: Sender) -> None:
    message = sender.push(1, CHUNK)
    sender.outbox.cancel(message)
    sender.clear(message)
    assert [shape[0] for shape in sender.shapes()] == [FrameKind.RTS]
    assert sender.told == {}
    assert sender.outbox.is_idle


def test_the_rest_of_a_withdrawn_message_is_not_sent(sender: Sender) -> None:
    message = sender.push(1, 3 * CHUNK)
    sender.clear(message)
    sender.take()
    sender.take()
    sender.outbox.cancel(message)
    assert sender.shapes() == []
    assert sender.told == {}
    assert sender.outbox.is_idle


@pytest.mark.parametrize("begun", [False, True])
def test_the_receiver_of_a_withdrawn_message_learns_it_point_to_point(
    sender: Sender, begun: bool
) -> None:
    message = sender.push(1, 3 * CHUNK, to_point=True)
    sender.take()
    if begun:
        sender.clear(message)
        sender.take()
    sender.outbox.cancel(message)
    assert sender.shapes() == [(FrameKind.CANCEL, 1, 0, 0)]
    sender.clear(message)  # on its way meanwhile
    assert sender.shapes() == []
    assert sender.outbox.is_idle


def test_withdrawing_what_is_out_already_says_nothing(sender: Sender) -> None:
    small = sender.push(1, 1, to_point=True)
    large = sender.push(2, CHUNK, to_point=True)
    sender.clear(large)
    sender.frames()
    for message in (small, large):
        sender.outbox.cancel(message)
    assert sender.shapes() == []


def test_what_was_asked_for_in_calls_that_are_over_is_forgotten(sender: Sender) -> None:
    for number in (1, 2, 3):
        sender.outbox.on_cts(Header(FrameKind.CTS, MessageKey(1, number), 5, CHUNK))
    sender.outbox.on_cts(Header(FrameKind.CTS, MessageKey(2, 1), 5, CHUNK))
    sender.outbox.forget(1, 2)
    assert set(sender.outbox._early_cts) == {MessageKey(1, 3), MessageKey(2, 1)}


def test_control_goes_before_what_is_large(sender: Sender) -> None:
    sender.clear(sender.push(1, 2 * CHUNK))
    sender.frames()
    sender.clear(sender.push(2, 2 * CHUNK))
    sender.outbox.push_control(Header(FrameKind.NACK, MessageKey(1, 3), 0, 0, 0, 4), b"call")
    assert [shape[0] for shape in sender.shapes()] == [
        FrameKind.RTS,
        FrameKind.NACK,
        FrameKind.DATA,
        FrameKind.DATA,
    ]


# ---------------------------------------------------------------- unasked, but not copied


def test_a_message_of_a_collective_of_one_frame_goes_unasked_in_its_turn(sender: Sender) -> None:
    message = sender.push(1, UNASKED)
    assert sender.told == {}
    frame = sender.outbox.next_frame()
    assert frame is not None
    assert sender.told == {}
    assert sender.outbox.is_in_flight(message)
    assert not sender.outbox.is_idle
    sender.outbox.finish_frame()
    assert sender.told == {message.key: True}
    assert unpack(whole(frame)) == Header(FrameKind.DATA, message.key, 5, UNASKED, 0, UNASKED)
    assert sender.outbox.is_idle


def test_to_a_point_it_keeps_its_place_among_smaller_ones(sender: Sender) -> None:
    message = sender.push(1, UNASKED, to_point=True)
    assert sender.told == {message.key: True}
    sender.push(2, 1, to_point=True)
    sender.push(3, UNASKED + 1, to_point=True)
    assert [(shape[0], shape[1]) for shape in sender.shapes()] == [
        (FrameKind.DATA, 1),
        (FrameKind.DATA, 2),
        (FrameKind.RTS, 3),
    ]


def test_a_message_of_a_call_in_slices_waits_to_be_asked_for(sender: Sender) -> None:
    key = MessageKey(1, 1)
    payload = memoryview(bytes(EAGER + 1))
    sender.outbox.push(PendingSend(key, [payload], 5, lambda _: None, eager_bytes=EAGER))
    assert [shape[0] for shape in sender.shapes()] == [FrameKind.RTS]


def test_what_is_withdrawn_before_its_turn_costs_no_budget(sender: Sender) -> None:
    for number in range(4):
        sender.outbox.cancel(sender.push(number, UNASKED))
    assert sender.shapes() == []
    for number in range(4, 8):
        sender.push(number, UNASKED)
    assert [shape[0] for shape in sender.shapes()] == [FrameKind.DATA] * 4
    sender.push(9, 1)
    assert [shape[0] for shape in sender.shapes()] == [FrameKind.RTS]


def test_messages_of_one_call_go_one_after_the_other(sender: Sender) -> None:
    def cleared(step: int, sequence: int) -> None:
        message = PendingSend(
            MessageKey(1, sequence, step), [memoryview(bytes(2 * CHUNK))], 5, lambda _: None
        )
        sender.outbox.on_cts(Header(FrameKind.CTS, message.key, 5, message.total))
        sender.outbox.push(message)

    cleared(0, 1)
    cleared(1, 1)
    cleared(0, 2)
    assert [(it.key.sequence, it.key.step, it.offset) for it, _ in sender.frames()] == [
        (1, 0, 0),
        (2, 0, 0),
        (1, 0, CHUNK),
        (2, 0, CHUNK),
        (1, 1, 0),
        (1, 1, CHUNK),
    ]


# ---------------------------------------------------------------- links that take frames at once


def test_a_link_that_takes_a_frame_at_once_gets_it_uncopied_and_in_order() -> None:
    taken: list[bytes] = []
    has_room = True

    def offer(frame: Frame) -> bool:
        if has_room:
            taken.append(whole(frame))
        return has_room

    sender = Sender(offer)
    first = sender.push(1, EAGER)
    assert sender.told[first.key]
    assert [unpack(one).key for one in taken] == [first.key]
    has_room = False
    second = sender.push(2, EAGER)
    has_room = True
    third = sender.push(3, EAGER)  # must not pass the second
    assert len(taken) == 1
    assert [it.key for it, _ in sender.frames()] == [second.key, third.key]
