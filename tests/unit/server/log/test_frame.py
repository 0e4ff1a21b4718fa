"""Frames of the coordinator's log: layout, checksums, chain."""

import pytest

from allhands_server.log import frame as frames
from allhands_server.log.errors import LogDamaged, LogTooNew
from allhands_server.log.frame import check_chain, decode_frame, encode_frame, make_frame


def test_a_frame_comes_back_as_it_was() -> None:
    frame = make_frame(3, 7, 0xDEADBEEF, b"changes")
    assert decode_frame(encode_frame(frame), 7) == frame


def test_the_layout_is_that_of_version_2() -> None:
    data = encode_frame(make_frame(2, 1, 0, b"ab"))
    assert data.hex() == (
        "61686c66"
        "0200"
        "0000"
        "0200000000000000"
        "0100000000000000"
        "00000000"
        "02000000" + data[32:36].hex() + "6162"
    )


@pytest.mark.parametrize("at", range(36 + 5))
def test_each_altered_byte_is_noticed(at: int) -> None:
    data = bytearray(encode_frame(make_frame(1, 4, 9, b"hello")))
    data[at] ^= 1
    with pytest.raises((LogDamaged, LogTooNew)):
        decode_frame(bytes(data), 4)


@pytest.mark.parametrize("length", [0, 3, 35, 36, 40])
def test_a_frame_that_is_cut_short_is_noticed(length: int) -> None:
    data = encode_frame(make_frame(1, 4, 9, b"hello"))
    with pytest.raises(LogDamaged, match="slot 4"):
        decode_frame(data[:length], 4)


def test_a_frame_in_another_slot_is_noticed() -> None:
    data = encode_frame(make_frame(1, 4, 9, b"hello"))
    with pytest.raises(LogDamaged, match=r"slot 5 .* the frame of slot 4"):
        decode_frame(data, 5)


def test_a_frame_of_a_later_version_names_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr(frames, "VERSION", 9)
        data = encode_frame(make_frame(1, 1, 0, b""))
    with pytest.raises(LogTooNew, match="format 9, and this version reads up to 2"):
        decode_frame(data, 1)


def test_the_chain_shows_a_frame_that_was_exchanged() -> None:
    first, other = make_frame(1, 1, 0, b"a"), make_frame(1, 1, 0, b"b")
    second = make_frame(1, 2, first.crc, b"c")
    check_chain(second, first.crc)
    with pytest.raises(LogDamaged, match=r"slot 2 .* lost or exchanged"):
        check_chain(second, other.crc)


def test_a_payload_beyond_the_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="too large"):
        make_frame(1, 1, 0, bytes(frames.LARGEST_PAYLOAD + 1))
