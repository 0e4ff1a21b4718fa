"""The public surface is stable: names, entry points, and the bytes of the wire."""

import pytest

from allhands.transport.frame import HEADER_BYTES, FrameKind, Header, MessageKey, unpack
from allhands_proto import framing
from allhands_proto.v1 import coordinator_pb2
from surface.describe import TEXTS, path


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "torch"])
def test_the_surface_is_as_it_was(name: str) -> None:
    """`make surface` writes the files anew, for an intended change."""
    assert [*TEXTS[name]()] == path(name).read_text().splitlines()


FRAMES = {
    Header(FrameKind.DATA, MessageKey(0x1122334455667788, 7, 2, 3), 0xA1A2, 48, 16, 32, epoch=5): (
        "414801010500000088776655443322110700000000000000"
        "0200000003000000a2a100000000000030000000000000001000000000000000"
        "2000000000000000"
    ),
    Header(FrameKind.NACK, MessageKey(1, 2), 0, 0, 0, 4): (
        "414801040000000001000000000000000200000000000000"
        "0000000000000000000000000000000000000000000000000000000000000000"
        "0400000000000000"
    ),
    Header(FrameKind.DATA, MessageKey(9, 4, 0, 6, is_p2p=True), 8, 3, 0, 3, is_cleared=True): (
        "414801010000000009000000000000000400000000000000"
        "0000000006000000080000000000000003000000000000000000000000000000"
        "0300000003000000"
    ),
}
"""Headers, and their bytes on the wire in hexadecimal."""


@pytest.mark.parametrize(("header", "bytes_"), FRAMES.items())
def test_headers_of_links_have_the_bytes_that_they_had(header: Header, bytes_: str) -> None:
    golden = bytes.fromhex(bytes_)
    assert len(golden) == HEADER_BYTES == 64
    assert header.pack() == golden
    assert unpack(golden + b"." * header.length) == header


def test_kinds_of_frames_have_the_numbers_that_they_had() -> None:
    numbers = [1, 2, 3, 4, 5, 6, 7, 8, 40, 41, 42, 43, 44, 9]
    assert [kind.value for kind in FrameKind] == numbers


def test_the_key_value_port_frames_as_it_did() -> None:
    assert framing.PREFACE == b"allhands-calls/1\n"
    hello = coordinator_pb2.KvHello(nonce=b"0123456789abcdef").SerializeToString()
    assert framing.encode_frame(hello) == b"\0\0\0\x12\x0a\x100123456789abcdef"
