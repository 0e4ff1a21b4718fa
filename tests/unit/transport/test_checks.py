"""Digests of frames: detected changes, and the cost without verification."""

import hashlib
import hmac
import random
import zlib
from collections import defaultdict
from collections.abc import Mapping

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from allhands.runtime import native_core
from allhands.testing.faults import flipped
from allhands.transport.digests import FrameSigner, FrameVerifier, LinkKey
from allhands.transport.frame import (
    HEADER_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_PAYLOAD_BYTES,
    Frame,
    FrameError,
    FrameKind,
    Header,
    MessageKey,
    unpack,
    whole,
)
from allhands.transport.link_state import LinkState, PlainLinkState

GROUPS = {1: None}
PEER = 3
KEY = LinkKey(b"secret", PEER, 0)


def signer(groups: Mapping[int, object] = GROUPS, key: LinkKey = KEY) -> FrameSigner:
    return FrameSigner(groups, key, PlainLinkState(0))


def verifier(groups: Mapping[int, object] = GROUPS) -> FrameVerifier:
    states: defaultdict[int, LinkState] = defaultdict(lambda: PlainLinkState(0))
    return FrameVerifier(groups, lambda peer: (KEY, states[peer]))


def data(number: int, payload: bytes = b"some payload", group: int = 1) -> Frame:
    total = MAX_MESSAGE_BYTES - 1  # all the bits that there may be
    offset = total - len(payload)
    header = Header(FrameKind.DATA, MessageKey(group, number), 5, total, offset, len(payload))
    return [header.pack(), memoryview(payload)]


def stamped(stamper: FrameSigner, frame: Frame) -> bytes:
    return whole(stamper.sign(frame))


def test_what_arrives_as_it_was_sent_passes_and_reads_as_before() -> None:
    stamper, inspector = signer(), verifier()
    for number in range(3):
        frame = data(number)
        sent = stamped(stamper, frame)
        assert inspector.verify(PEER, sent)
        assert unpack(sent) == unpack(whole(frame))._replace(has_digest=True)
        assert sent[HEADER_BYTES:] == b"some payload"


def test_frames_in_one_piece_and_without_payload_are_stamped_as_well() -> None:
    stamper, inspector = signer(), verifier()
    for frame in ([whole(data(1))], [Header(FrameKind.CTS, MessageKey(1, 2), 5, 10).pack()]):
        assert inspector.verify(PEER, stamped(stamper, frame))


def test_other_groups_frames_stay_as_they_are() -> None:
    frame = data(1, group=2)
    assert signer().sign(frame) is frame
    assert verifier().verify(PEER, whole(frame))
    assert signer({}, KEY).sign(data(1)) == data(1)


def test_a_frame_that_the_link_did_not_take_is_counted_when_it_goes() -> None:
    stamper, inspector = signer(), verifier()
    assert not stamper.offer(data(1), lambda _: False)
    taken: list[Frame] = []
    for number in (1, 2):
        assert stamper.offer(data(number), lambda frame: not taken.append(frame))  # type: ignore[func-returns-value]
    assert all(inspector.verify(PEER, whole(frame)) for frame in taken)


def test_every_single_bit_that_changes_is_found() -> None:
    sent = stamped(signer(), data(1))
    for bit in range(len(sent) * 8):
        changed = flipped(sent, [bit])
        inspector = verifier()
        try:
            assert not inspector.verify(PEER, changed), bit
        except FrameError:
            continue  # it was the flag itself, so that there seems to be no digest


def test_a_changed_payload_of_a_full_frame_is_found() -> None:
    payload = random.Random(1).randbytes(MAX_PAYLOAD_BYTES)
    sent = stamped(signer(), data(1, payload))
    for bit in random.Random(2).choices(range(MAX_PAYLOAD_BYTES * 8), k=5):
        assert not verifier().verify(PEER, flipped(sent, [HEADER_BYTES * 8 + bit]))


@pytest.mark.parametrize("nbytes", [0, 511, 512, 70_000])
@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_digests_are_those_of_the_protocol(nbytes: int, pieces: int) -> None:
    payload = random.Random(nbytes).randbytes(nbytes)
    header, body = data(1, payload)
    frames = {1: [whole([header, body])], 2: [header, body], 3: [header, body[:99], body[99:]]}
    sent = bytearray(stamped(signer(), frames[pieces]))
    assert verifier().verify(PEER, bytes(sent))
    halves = 40 + 6, 48 + 6
    claimed = b"".join(sent[at : at + 2] for at in halves)
    assert sent[HEADER_BYTES:] == payload
    frame_key, payload_key = (
        hmac.digest(b"secret", b"%s of the link 3>0" % purpose, "sha256")
        for purpose in (b"frames", b"payloads")
    )
    if nbytes >= 512:
        cipher = Cipher(algorithms.AES(payload_key), modes.GCM(bytes(12))).encryptor()
        cipher.authenticate_additional_data(payload)
        cipher.finalize()
        payload = cipher.tag
    text = bytes(8) + _without(sent, halves)[:HEADER_BYTES] + payload
    assert hashlib.blake2b(text, key=frame_key, digest_size=4).digest() == claimed


@pytest.mark.skipif(native_core.find()[0] is None, reason="there is no native core")
@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 511, 512, 513, 4095, 70_000, 1 << 20])
def test_the_core_makes_the_digests_of_the_protocol(nbytes: int) -> None:
    core, _ = native_core.find()
    assert core is not None
    state, some = core.LinkState(0), random.Random(nbytes)
    other = LinkKey(b"secret", 0, PEER)
    keys = KEY.derive_keys()
    state.set_digesters(_compute_nothing, _compute_nothing, keys, other.derive_keys())
    for number in (0, 1, 2**63 + 5):
        header, payload = some.randbytes(HEADER_BYTES), some.randbytes(nbytes)
        expected = KEY.compute_digest(number, header, payload)
        assert state.compute_digest(number, header, payload) == expected


@pytest.mark.skipif(native_core.find()[0] is None, reason="there is no native core")
def test_without_keys_the_core_makes_no_digest() -> None:
    core, _ = native_core.find()
    assert core is not None
    state = core.LinkState(0)
    state.set_digesters(_compute_nothing, _compute_nothing, None, KEY.derive_keys())
    with pytest.raises(ValueError, match="makes no digest"):
        state.compute_digest(0, bytes(HEADER_BYTES), b"")
    for wrong in ((b"", b""), (bytes(32),), (bytes(32), bytes(33)), 7):
        with pytest.raises(TypeError, match="two of 32 bytes"):
            state.set_digesters(_compute_nothing, _compute_nothing, wrong, None)  # type: ignore[arg-type]


def _compute_nothing(number: int, header: object, payload: object) -> int:
    raise AssertionError("Python is not asked")


def test_a_frame_that_is_lost_comes_twice_or_is_overtaken_is_a_protocol_error() -> None:
    stamper = signer()
    first, second, third = (stamped(stamper, data(number)) for number in range(3))
    inspector = verifier()
    assert inspector.verify(PEER, first)
    with pytest.raises(FrameError, match=r"frame 3 .* came too early: frame 2 was due"):
        inspector.verify(PEER, third)
    inspector = verifier()
    assert inspector.verify(PEER, first)
    assert inspector.verify(PEER, second)
    with pytest.raises(FrameError, match=r"frame 2 .* came twice or too late: frame 3 was due"):
        inspector.verify(PEER, second)


def test_frames_that_are_taken_back_come_next_as_often_as_they_are() -> None:
    """Beside others that were taken in meanwhile, and frames of groups without digests."""
    sender, receiver = signer(), verifier()
    frames = [data(number) for number in range(4)]
    sent = [stamped(sender, frame) for frame in frames]
    assert all(receiver.verify(PEER, one) for one in sent[:3])
    for _ in range(3):
        again = receiver.take_back(PEER, [frames[0], data(7, group=2), frames[2]])
        length = len(sent[0])
        assert again[length : 2 * length] == whole(data(7, group=2))
        assert receiver.verify(PEER, again[:length])
        assert receiver.verify(PEER, again[2 * length :])
    assert receiver.verify(PEER, sent[3])


def test_frames_of_each_peer_are_counted_by_themselves() -> None:
    inspector = verifier()
    for peer in (1, 2):
        assert inspector.verify(peer, stamped(signer(), data(1)))


def test_a_frame_without_digest_of_a_group_that_verifies_is_a_protocol_error() -> None:
    with pytest.raises(FrameError, match="without digest"):
        verifier().verify(PEER, whole(data(1)))


def test_a_frame_with_digest_of_a_group_that_is_not_open_yet_is_looked_at() -> None:
    sent = stamped(signer(), data(1))
    assert verifier({}).verify(PEER, sent)
    assert not verifier({}).verify(PEER, flipped(sent, [HEADER_BYTES * 8]))


@pytest.mark.parametrize(
    "other",
    [LinkKey(b"guess", PEER, 0), LinkKey(b"secret", 0, PEER), LinkKey(b"secret", PEER, 1)],
    ids=["another secret", "another direction", "another link"],
)
@pytest.mark.parametrize("nbytes", [12, 5000])
def test_a_digest_under_another_key_is_none(other: LinkKey, nbytes: int) -> None:
    forged = whole(signer(GROUPS, other).sign(data(1, bytes(nbytes))))
    assert not verifier().verify(PEER, forged)


def test_who_does_not_hold_the_secret_cannot_repair_what_he_changed() -> None:
    sent = bytearray(stamped(signer(), data(1, b"1.0")))
    sent[HEADER_BYTES:] = b"3.0"
    halves = (total_at, offset_at) = 40 + 6, 48 + 6
    crc = zlib.crc32(_without(sent, halves), 0)  # of frame 0, as it was before there was a key
    sent[total_at : total_at + 2] = (crc & 0xFFFF).to_bytes(2, "little")
    sent[offset_at : offset_at + 2] = (crc >> 16).to_bytes(2, "little")
    assert not verifier().verify(PEER, bytes(sent))


def _without(frame: bytearray, halves: tuple[int, int]) -> bytes:
    cleared = bytearray(frame)
    for at in halves:
        cleared[at : at + 2] = bytes(2)
    return bytes(cleared)
