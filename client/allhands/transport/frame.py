"""Binary header of a frame, with validation.

Layout in `peer.proto`. Nothing is believed: a frame that is not exactly what its header says
is a `FrameError`, before its size is used for anything.
"""

import enum
import struct
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

MAX_PAYLOAD_BYTES = 1 << 20
"""Payload bytes of a full frame: gRPC's throughput peaks there; 64 KiB and 8 MiB lose a third."""

_HEADER = struct.Struct("<2sBBIQQIIQQQII")
HEADER_BYTES = _HEADER.size
MAX_FRAME_BYTES = HEADER_BYTES + MAX_PAYLOAD_BYTES
MAX_MESSAGE_BYTES = 1 << 48
_MAGIC = b"AH"
_VERSION = 1
_P2P_FLAG = 1
_CLEARED_FLAG = 2
DIGEST_FLAG = 4
"""Flag of a frame with a digest, half of it above the 48 bits of `total`, half above `offset`'s."""
_48_BITS = (1 << 48) - 1
_FRONT = struct.Struct("<2sBB52xI4x")
"""What of a header says where its frame ends: magic, version, kind, bytes of payload."""

Frame: TypeAlias = Sequence[bytes | memoryview]
"""Header and payload, end to end; the first piece holds the whole header."""


class FrameError(ValueError):
    """These bytes are no frame of this protocol."""


class FrameKind(enum.IntEnum):
    DATA = 1
    """A piece of a message."""
    CTS = 2
    """The receiver has posted the receive: send the message."""
    RTS = 3
    """The sender holds a message and waits to be cleared."""
    NACK = 4
    """The receiver called something else; the payload is its call, in UTF-8."""
    CREDIT = 5
    """`total` bytes of unasked messages have been taken in."""
    CANCEL = 6
    """The sender has given up a message that it had announced."""
    BYE = 7
    """Nothing follows; a link that ends without it has broken."""
    CALL = 8
    """The sender is in this call, and waits for the receiver to do its part."""
    PING = 40
    """Answer at once with a pong."""
    PONG = 41
    """The payload says what the sender is doing: a Heartbeat of coordinator.proto."""
    GIVE_UP = 42
    """The sender has given this call up on purpose; the payload is the reason, in UTF-8."""
    ABORT = 43
    """All of a group is over, or of the world where its hash is 0; the payload is an Aborted."""
    RELAY = 44
    """A SessionEvent of coordinator.proto, for a rank that the coordinator cannot reach."""
    CORRUPT = 9
    """Data of this call was changed on its way; the payload says on which link."""


class MessageKey(NamedTuple):
    """Identity of a message between two given ranks."""

    group: int
    """Hash of the group's name."""
    sequence: int
    """Of the call; point to point: the sender's own count of messages to this receiver."""
    step: int = 0
    """Place in the call's schedule."""
    part: int = 0
    """Slice of the call; point to point: the tag."""
    is_p2p: bool = False


class Header(NamedTuple):
    kind: FrameKind
    key: MessageKey
    signature: int
    total: int
    """Bytes in the whole message."""
    offset: int = 0
    length: int = 0
    """Bytes of payload behind this header."""
    epoch: int = 0
    is_cleared: bool = False
    """Data: of a message that the receiver has cleared; it counts against no budget."""
    has_digest: bool = False
    """Whether it has a digest, which it is given when it leaves."""

    def pack(self) -> bytes:
        key = self.key
        return _HEADER.pack(
            _MAGIC,
            _VERSION,
            self.kind,
            self.epoch,
            key.group,
            key.sequence,
            key.step,
            key.part,
            self.signature,
            self.total,
            self.offset,
            self.length,
            (_P2P_FLAG if key.is_p2p else 0) | (_CLEARED_FLAG if self.is_cleared else 0),
        )


_KINDS = {int(kind): kind for kind in FrameKind}


def whole(frame: Frame) -> bytes:
    """Join a frame's header and payload into one bytes object."""
    return frame[0] if len(frame) == 1 and isinstance(frame[0], bytes) else b"".join(frame)


def read_extent(head: memoryview) -> tuple[int, int]:
    """Return the kind number and the payload bytes of a frame.

    `head` begins with a whole header, of which nothing else is looked at.

    Raises:
        FrameError: it begins no frame, or one that is too long.
    """
    magic, version, kind, length = _FRONT.unpack_from(head)
    _check_front(magic, version)
    _check_length(length)
    return kind, length


def unpack(frame: bytes | memoryview) -> Header:
    """Read the header of a whole frame.

    Raises:
        FrameError: the bytes are not a frame, or its payload is not as long as it says.
    """
    header = unpack_header(frame)
    came = len(frame) - HEADER_BYTES
    if header.length != came:
        raise FrameError(f"the header says {header.length} bytes of payload, {came} came")
    return header


def unpack_header(frame: bytes | memoryview) -> Header:
    """Read a header; the payload may still be incomplete.

    Raises:
        FrameError: the bytes are no header, or one that contradicts itself.
    """
    if len(frame) < HEADER_BYTES:
        raise FrameError(f"{len(frame)} bytes are too few for a header of {HEADER_BYTES}")
    (
        magic,
        version,
        kind,
        epoch,
        group,
        sequence,
        step,
        part,
        signature,
        total,
        offset,
        length,
        flags,
    ) = _HEADER.unpack_from(frame)
    _check_front(magic, version)
    _check_length(length)
    if flags & DIGEST_FLAG:
        total, offset = total & _48_BITS, offset & _48_BITS
    if total > MAX_MESSAGE_BYTES or (kind == FrameKind.DATA and offset + length > total):
        raise FrameError(f"payload [{offset}, {offset + length}) of a message of {total} bytes")
    known = _KINDS.get(kind)
    if known is None:
        raise FrameError(f"unknown kind of frame {kind}")
    if flags & ~(_P2P_FLAG | _CLEARED_FLAG | DIGEST_FLAG):
        raise FrameError(f"unknown flags {flags:#x}")
    key = MessageKey(group, sequence, step, part, bool(flags & _P2P_FLAG))
    return Header(
        known,
        key,
        signature,
        total,
        offset,
        length,
        epoch,
        bool(flags & _CLEARED_FLAG),
        bool(flags & DIGEST_FLAG),
    )


def _check_front(magic: bytes, version: int) -> None:
    if magic != _MAGIC or version != _VERSION:
        raise FrameError(f"magic {magic!r}, version {version} instead of {_MAGIC!r}, {_VERSION}")


def _check_length(length: int) -> None:
    if length > MAX_PAYLOAD_BYTES:
        raise FrameError(
            f"the header says {length} bytes of payload, {MAX_PAYLOAD_BYTES} are allowed"
        )
