"""Frames: packing and unpacking, and malformed headers."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from allhands.transport.frame import (
    HEADER_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_PAYLOAD_BYTES,
    FrameError,
    FrameKind,
    Header,
    MessageKey,
    unpack,
)

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
KEYS = st.builds(MessageKey, U64, U64, U32, U32, st.booleans())

DATA = Header(FrameKind.DATA, MessageKey(7, 1), 99, total=100, offset=10, length=5)


@st.composite
def headers(draw: st.DrawFn) -> Header:
    kind = draw(st.sampled_from(FrameKind))
    total = draw(st.integers(0, MAX_MESSAGE_BYTES))
    length = draw(st.integers(0, 50)) if kind in (FrameKind.DATA, FrameKind.NACK) else 0
    if kind is FrameKind.DATA:
        length = min(length, total)
    offset = draw(st.integers(0, total - length)) if kind is FrameKind.DATA else 0
    return Header(
        kind, draw(KEYS), draw(U64), total, offset, length, draw(U32), draw(st.booleans())
    )


@given(headers())
def test_what_is_packed_is_unpacked(header: Header) -> None:
    assert unpack(header.pack() + b"x" * header.length) == header


@given(st.binary(max_size=200))
@example(DATA.pack() + b"valid")
def test_random_bytes_are_a_frame_error_or_a_valid_header(frame: bytes) -> None:
    try:
        header = unpack(frame)
    except FrameError:
        return
    assert header.pack() == frame[:HEADER_BYTES]
    assert header.length == len(frame) - HEADER_BYTES


@given(headers(), st.integers(0, HEADER_BYTES - 1), st.integers(0, 255))
def test_a_header_with_one_byte_changed_is_a_frame_error_or_another_valid_header(
    header: Header, at: int, value: int
) -> None:
    frame = bytearray(header.pack() + b"x" * header.length)
    frame[at] = value
    try:
        found = unpack(bytes(frame))
    except FrameError:
        return
    assert found.length == header.length
    assert found.total <= MAX_MESSAGE_BYTES
    assert found.kind is not FrameKind.DATA or found.offset + found.length <= found.total


def test_the_layout_is_that_of_the_protocol() -> None:
    header = Header(
        FrameKind.DATA,
        MessageKey(0x11, 0x22, 0x33, 0x44, True),
        0x55,
        0x66,
        0x07,
        0x08,
        0x99,
        is_cleared=True,
    )
    wanted = b"AH\x01\x01" + struct.pack(
        "<IQQIIQQQII", 0x99, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x07, 0x08, 0b11
    )
    assert header.pack() == wanted
    assert len(wanted) == HEADER_BYTES == 64


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "0 bytes are too few"),
        (DATA.pack()[:-1], "63 bytes are too few"),
        (b"HA" + DATA.pack()[2:] + b"x" * 5, "magic b'HA'"),
        (b"AH\x02" + DATA.pack()[3:] + b"x" * 5, "version 2"),
        (b"AH\x01\x63" + DATA.pack()[4:] + b"x" * 5, "unknown kind of frame 99"),
        (DATA.pack() + b"x" * 4, "says 5 bytes of payload, 4 came"),
        (DATA.pack() + b"x" * 6, "says 5 bytes of payload, 6 came"),
        (
            DATA._replace(length=MAX_PAYLOAD_BYTES + 1).pack() + bytes(MAX_PAYLOAD_BYTES + 1),
            f"{MAX_PAYLOAD_BYTES} are allowed",
        ),
        (DATA._replace(offset=96).pack() + b"x" * 5, r"\[96, 101\) of a message of 100"),
        (DATA._replace(total=MAX_MESSAGE_BYTES + 1).pack() + b"x" * 5, "of a message of"),
        (DATA._replace(total=2**64 - 1).pack() + b"x" * 5, "of a message of"),
        (DATA._replace(offset=2**64 - 1).pack() + b"x" * 5, "of a message of"),
        (DATA.pack()[:-4] + b"\x08\0\0\0" + b"x" * 5, "unknown flags 0x8"),
    ],
)
def test_what_is_no_frame_is_refused_with_the_reason(frame: bytes, reason: str) -> None:
    with pytest.raises(FrameError, match=reason):
        unpack(frame)


def test_the_largest_frame_is_one() -> None:
    header = Header(
        FrameKind.DATA, MessageKey(1, 1), 0, total=MAX_MESSAGE_BYTES, length=MAX_PAYLOAD_BYTES
    )
    assert unpack(header.pack() + bytes(MAX_PAYLOAD_BYTES)) == header
