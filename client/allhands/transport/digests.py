"""Keyed digests of the frames of verifying groups, from sender to receiver.

Layout in `peer.proto`. The digest is an HMAC-SHA256 cut to 32 bits, under a key of the link which
follows from the secret of the job: who does not hold that cannot change a frame and make its digest
right again, but by luck, once in 2^32. It covers header and payload, and begins with the number of
the frame among those checked on its link: so one that was lost, came twice or was overtaken gives
itself away as well. Other groups' frames are as they would be without.
"""

import hmac
import struct
from collections.abc import Callable, Mapping
from typing import Protocol

from allhands.transport.frame import DIGEST_FLAG, Frame, FrameError, MessageKey

_GROUP = struct.Struct("<8xQ")
_TAIL = struct.Struct("<QQII")
"""Of a header: total, offset, length, flags."""
_TAIL_AT = 40
_HALF_AT = 48
"""Bit of total and offset above which each holds half of the digest."""
_BELOW = (1 << _HALF_AT) - 1
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
        key = hmac.digest(secret, b"frames of the link %d>%d" % (start, end), "sha256")
        self._base = hmac.new(key, digestmod="sha256")

    def compute_digest(self, number: int, *pieces: "bytes | bytearray | memoryview") -> int:
        """Return the digest of the frame with that number among those checked on the link."""
        made = self._base.copy()
        made.update(number.to_bytes(8, "little"))
        for piece in pieces:
            made.update(piece)
        return int.from_bytes(made.digest()[:4], "little")


class FrameSigner:
    """Signs the frames of one link."""

    def __init__(self, groups: Mapping[int, object], key: LinkKey) -> None:
        self._groups = groups
        self._key = key
        self._count = 0

    def offer(self, frame: Frame, offer_to_link: Callable[[Frame], bool]) -> bool:
        """Offer a frame to the link, signed if its group verifies; return whether the link took it.

        Frames must be offered here in the order in which the link sends them.
        """
        if not self._groups or not self._needs_digest(frame):
            return offer_to_link(frame)
        if not offer_to_link(_add_digest(frame, self._count, self._key)):
            return False
        self._count += 1
        return True

    def sign(self, frame: Frame) -> Frame:
        """Return the frame in its final, signed form; the link must send it next."""
        if not self._groups or not self._needs_digest(frame):
            return frame
        self._count += 1
        return _add_digest(frame, self._count - 1, self._key)

    def _needs_digest(self, frame: Frame) -> bool:
        return _GROUP.unpack_from(frame[0])[0] in self._groups


class FrameVerifier:
    """Verifies the frames of all links of a rank; `key_from` gives a peer's key."""

    def __init__(self, groups: Mapping[int, object], key_from: Callable[[int], LinkKey]) -> None:
        self._groups = groups
        self._key_from = key_from
        self._keys: dict[int, LinkKey] = {}
        self._counts: dict[int, int] = {}

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
        header = bytearray(frame[: _TAIL_AT + _TAIL.size])
        _TAIL.pack_into(header, _TAIL_AT, total & _BELOW, offset & _BELOW, length, flags)
        payload = memoryview(frame)[len(header) :]
        expected = self._counts.get(peer, 0)
        self._counts[peer] = expected + 1
        if (key := self._keys.get(peer)) is None:
            key = self._keys[peer] = self._key_from(peer)
        if key.compute_digest(expected, header, payload) == claimed:
            return True
        for number in range(max(expected - _WINDOW, 0), expected + _WINDOW):
            if key.compute_digest(number, header, payload) == claimed:
                what = "came twice or too late" if number < expected else "came too early"
                raise FrameError(
                    f"frame {number + 1} of those checked {what}: frame {expected + 1} was due"
                )
        return False


def _add_digest(frame: Frame, number: int, key: LinkKey) -> Frame:
    first = bytearray(frame[0])
    total, offset, length, flags = _TAIL.unpack_from(first, _TAIL_AT)
    _TAIL.pack_into(first, _TAIL_AT, total, offset, length, flags | DIGEST_FLAG)
    digest = key.compute_digest(number, first, *frame[1:])
    _TAIL.pack_into(
        first,
        _TAIL_AT,
        total | (digest & 0xFFFF) << _HALF_AT,
        offset | digest >> 16 << _HALF_AT,
        length,
        flags | DIGEST_FLAG,
    )
    return [bytes(first), *frame[1:]]
