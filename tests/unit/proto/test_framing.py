"""Frames, cut at any byte by the network."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allhands_proto.framing import HEADER, FrameDecoder, MalformedFrame, encode_frame


@given(st.lists(st.binary(max_size=40), max_size=8), st.data())
def test_bodies_come_whole_and_in_order_however_the_bytes_are_cut(
    bodies: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(map(encode_frame, bodies))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    cutter = FrameDecoder()
    found = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += cutter.feed(stream[begin:end])
    assert found == bodies


def test_the_largest_frame_is_taken_and_one_byte_more_is_not() -> None:
    assert list(FrameDecoder(largest=300).feed(encode_frame(b"x" * 300))) == [b"x" * 300]
    with pytest.raises(MalformedFrame, match="301 bytes; 300"):
        list(FrameDecoder(largest=300).feed(encode_frame(b"x" * 301)))


def test_a_length_is_judged_before_its_body_comes() -> None:
    with pytest.raises(MalformedFrame):
        list(FrameDecoder().feed(b"\xff" * HEADER))


def test_a_length_that_has_not_come_whole_is_not_judged() -> None:
    cutter = FrameDecoder(largest=300)
    assert list(cutter.feed(b"\x00\x00\x00")) == []
    assert list(cutter.feed(b"\x01x")) == [b"x"]


def test_a_length_alone_takes_no_memory() -> None:
    cutter = FrameDecoder()
    tracemalloc.start()
    try:
        assert list(cutter.feed((8 << 20).to_bytes(HEADER, "big"))) == []
        assert tracemalloc.get_traced_memory()[0] < 10_000
    finally:
        tracemalloc.stop()


def test_the_limit_may_change_between_two_bodies() -> None:
    cutter = FrameDecoder(largest=1)
    found = []
    for body in cutter.feed(encode_frame(b"a") + encode_frame(b"bcd")):
        found.append(body)
        cutter.largest = 3
    assert found == [b"a", b"bcd"]
