"""Keyed digests of the frames of verifying groups, from sender to receiver.

Layout in `peer.proto`. The digest is a BLAKE2b of 32 bits, under a key of the link which follows
from the secret of the job: who does not hold that cannot change a frame and make its digest right
again, but by luck, once in 2^32 (keyed BLAKE2 is a MAC: RFC 7693). It covers header and payload,
and begins with the number of the frame among those checked on its link: so one that was lost, came
twice or was overtaken gives itself away as well. Other groups' frames are as they would be without.

In place of a payload that is not short stands its AES-GMAC, which is made five to ten times faster
than a hash of it. That is a universal hash before a pseudorandom function: as nobody sees what is
hashed under a number that does not change, two payloads have the same one but by luck, once in
2^112 (McGrew, Viega: The Security and Performance of the Galois/Counter Mode, 2004).
"""

import hashlib
import hmac
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from allhands.transport.frame import (
    DIGEST_FLAG,
    HEADER_BYTES,
    Frame,
    FrameError,
    MessageKey,
    whole,
)
from allhands.transport.link_state import LinkState

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_GROUP = struct.Struct("<8xQ")
_TAIL = struct.Struct("<QQII")
"""Of a header: total, offset, length, flags."""
_TAIL_AT = 40
_HALF_AT = 48
"""Bit of total and offset above which each holds half of the digest."""
_BELOW = (1 << _HALF_AT) - 1
_DIGEST_BYTES = 4
_LONG_BYTES = 512
"""Payloads of at least so many bytes are condensed."""
_NONCE = bytes(12)
_WINDOW = 16
"""How many frames may be lost, or come again, to be told from frames that were changed."""


class DigestListener(Protocol):
    """A verifying group; called by the mesh."""

    def on_corrupt_frame(self, peer: int, key: MessageKey) -> None:
        """Handle a corrupt frame from `peer`, probably of `key`; the frame was dropped.

        Raises:
            FrameError: it belongs to no call that could be ended.
        """

    def on_corruption_report(self, peer: int, key: MessageKey, link: tuple[int, int]) -> None:
        """Handle a report by `peer` of a corrupt frame of a call on a link of the world."""


class LinkKey:
    """Digest key of one link, from rank `start` to rank `end`."""

    def __init__(self, secret: bytes, start: int, end: int) -> None:
        self._secret = secret
        self._link = start, end

    @cached_property
    def _base(self) -> hashlib.blake2b:
        return hashlib.blake2b(key=self.derive_keys()[0], digest_size=_DIGEST_BYTES)

    @cached_property
    def _payload_cipher(self) -> "AESGCM":
        # Here, as it takes long to load: only groups that verify need it.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(self.derive_keys()[1])

    def derive_keys(self) -> tuple[bytes, bytes]:
        """Return the keys of BLAKE2b and of AES-GMAC, of 32 bytes each."""
        return self._derive(b"frames"), self._derive(b"payloads")

    def _derive(self, purpose: bytes) -> bytes:
        return hmac.digest(self._secret, purpose + b" of the link %d>%d" % self._link, "sha256")

    def compute_digest(
        self,
        number: int,
        header: "bytes | bytearray | memoryview",
        *payload: "bytes | bytearray | memoryview",
    ) -> int:
        """Return the digest of the frame with that number among those checked on the link."""
        covered = payload[0] if len(payload) == 1 else b"".join(payload)
        if len(covered) >= _LONG_BYTES:
            covered = self._payload_cipher.encrypt(_NONCE, b"", covered)
        made = self._base.copy()
        made.update(number.to_bytes(8, "little"))
        made.update(header)
        made.update(covered)
        return int.from_bytes(made.digest(), "little")


class FrameSigner:
    """Signs the frames of one link, whose `state` has how many have left."""

    def __init__(self, groups: Mapping[int, object], key: LinkKey, state: LinkState) -> None:
        self._groups = groups
        self._key = key
        self.state = state

    def offer(self, frame: Frame, offer_to_link: Callable[[Frame], bool]) -> bool:
        """Offer a frame to the link, signed if its group verifies; return whether the link took it.

        Frames must be offered here in the order in which the link sends them.
        """
        if not self._groups or not self._needs_digest(frame):
            return offer_to_link(frame)
        if not offer_to_link(_add_digest(frame, self.state.signed_frames, self._key)):
            return False
        self.state.signed_frames += 1
        return True

    def sign(self, frame: Frame) -> Frame:
        """Return the frame in its final, signed form; the link must send it next."""
        if not self._groups or not self._needs_digest(frame):
            return frame
        self.state.signed_frames += 1
        return _add_digest(frame, self.state.signed_frames - 1, self._key)

    def _needs_digest(self, frame: Frame) -> bool:
        return _GROUP.unpack_from(frame[0])[0] in self._groups


class FrameVerifier:
    """Verifies the frames of all links of a rank.

    `find_link` gives the key of the link from a peer, and the state that has how many have come.
    """

    def __init__(
        self, groups: Mapping[int, object], find_link: Callable[[int], tuple[LinkKey, LinkState]]
    ) -> None:
        self._groups = groups
        self._find_link = find_link

    def verify(self, peer: int, frame: bytes | memoryview) -> bool:
        """Return whether a whole frame is intact, if its group requested verification.

        Raises:
            FrameError: the frame is out of sequence, or lacks a required digest.
        """
        total, offset, length, flags = _TAIL.unpack_from(frame, _TAIL_AT)
        if not flags & DIGEST_FLAG:
            if self._groups and _GROUP.unpack_from(frame)[0] in self._groups:
                raise FrameError("a frame without digest of a group that this rank wants verified")
            return True
        claimed = total >> _HALF_AT | offset >> _HALF_AT << 16
        header = bytearray(frame[:HEADER_BYTES])
        _TAIL.pack_into(header, _TAIL_AT, total & _BELOW, offset & _BELOW, length, flags)
        payload = memoryview(frame)[len(header) :]
        key, state = self._find_link(peer)
        expected = state.verified_frames
        state.verified_frames = expected + 1
        if key.compute_digest(expected, header, payload) == claimed:
            return True
        for number in range(max(expected - _WINDOW, 0), expected + _WINDOW):
            if key.compute_digest(number, header, payload) == claimed:
                what = "came twice or too late" if number < expected else "came too early"
                raise FrameError(
                    f"frame {number + 1} of those checked {what}: frame {expected + 1} was due"
                )
        return False

    def take_back(self, peer: int, frames: Sequence[Frame]) -> bytes:
        """Return verified frames as if they had not come yet, but came next, in this order.

        Others have come since they did, so they get new numbers. Those of groups that do not
        request verification stay as they are.
        """
        key, state = self._find_link(peer)
        signed = [_GROUP.unpack_from(frame[0])[0] in self._groups for frame in frames]
        state.verified_frames -= sum(signed)
        number = state.verified_frames
        taken: list[bytes] = []
        for frame, is_signed in zip(frames, signed, strict=True):
            taken.append(whole(_add_digest(frame, number, key) if is_signed else frame))
            number += is_signed
        return b"".join(taken)


def _add_digest(frame: Frame, number: int, key: LinkKey) -> Frame:
    header = bytearray(frame[0][:HEADER_BYTES])
    payload = [frame[0][HEADER_BYTES:], *frame[1:]] if len(frame[0]) > HEADER_BYTES else frame[1:]
    total, offset, length, flags = _TAIL.unpack_from(header, _TAIL_AT)
    _TAIL.pack_into(header, _TAIL_AT, total, offset, length, flags | DIGEST_FLAG)
    digest = key.compute_digest(number, header, *payload)
    _TAIL.pack_into(
        header,
        _TAIL_AT,
        total | (digest & 0xFFFF) << _HALF_AT,
        offset | digest >> 16 << _HALF_AT,
        length,
        flags | DIGEST_FLAG,
    )
    return [bytes(header), *payload]
