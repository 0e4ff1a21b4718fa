"""Frames, the entries of the log: their layout, and the chain from each to the one before.

A frame holds the changes of one commit. Layout, little endian:

    magic     4 bytes  "ahlf"
    version   u16      of the layout and of the changes inside
    reserved  u16      0
    term      u64      of the leader that appended the frame
    index     u64      slot of the log, from 1
    chain     u32      CRC of the frame before; 0 in slot 1
    length    u32      bytes of the payload
    crc       u32      CRC-32 of all fields above and the payload
    payload            serialised changes

A frame in the wrong slot, or one whose chain is not the CRC of the frame before, means that the
engine has lost or exchanged frames which it had acknowledged.
"""

import struct
import zlib

from allhands_proto.quick_dataclass import dataclass
from allhands_server.log.errors import LogDamaged, LogTooNew

VERSION = 2
"""1: keys without the revision of their creation and their version; see `migration`."""
LARGEST_PAYLOAD = 64 << 20
"""Bytes. A commit is at most one request's changes above the size at which it is closed, or all
members of the largest world."""

_MAGIC = b"ahlf"
_FIELDS = struct.Struct("<4sHHQQII")
_CRC = struct.Struct("<I")
HEADER_NBYTES = _FIELDS.size + _CRC.size


@dataclass(frozen=True, slots=True)
class Frame:
    """One entry of the log."""

    term: int
    index: int
    chain: int
    """CRC of the frame before; 0 in slot 1."""
    payload: bytes
    crc: int
    """CRC of this frame."""
    version: int = VERSION
    """Of the layout and of the changes."""


def make_frame(term: int, index: int, chain: int, payload: bytes) -> Frame:
    """Make a frame with its CRC.

    Raises:
        ValueError: the payload is larger than `LARGEST_PAYLOAD`.
    """
    if len(payload) > LARGEST_PAYLOAD:
        raise ValueError(f"a frame of {len(payload):,} bytes is too large for the log")
    fields = _pack_fields(term, index, chain, len(payload))
    return Frame(term, index, chain, payload, zlib.crc32(payload, zlib.crc32(fields)))


def encode_frame(frame: Frame) -> bytes:
    """Return the bytes of a frame."""
    fields = _pack_fields(frame.term, frame.index, frame.chain, len(frame.payload))
    return b"".join((fields, _CRC.pack(frame.crc), frame.payload))


def decode_frame(data: bytes, slot: int) -> Frame:
    """Return the frame in a slot's bytes.

    Raises:
        LogTooNew: a later version of allhands has written it.
        LogDamaged: it is cut short, altered, or of another slot.
    """
    if len(data) < HEADER_NBYTES:
        raise LogDamaged(slot, f"{len(data)} bytes are no frame")
    magic, version, _, term, index, chain, length = _FIELDS.unpack_from(data)
    if magic != _MAGIC:
        raise LogDamaged(slot, "the bytes are no frame")
    if version > VERSION:
        raise LogTooNew(slot, f"format {version}, and this version reads up to {VERSION}")
    payload = data[HEADER_NBYTES:]
    if len(payload) != length:
        raise LogDamaged(slot, f"{len(payload):,} of {length:,} bytes are there")
    (crc,) = _CRC.unpack_from(data, _FIELDS.size)
    if zlib.crc32(payload, zlib.crc32(data[: _FIELDS.size])) != crc:
        raise LogDamaged(slot, "the checksum does not match the bytes")
    if index != slot:
        raise LogDamaged(slot, f"the frame of slot {index:,} stands there")
    return Frame(term, index, chain, payload, crc, version)


def check_chain(frame: Frame, previous_crc: int) -> None:
    """Check that a frame follows the one before.

    Raises:
        LogDamaged: the frame before is another one than when this was appended.
    """
    if frame.chain != previous_crc:
        raise LogDamaged(
            frame.index,
            f"the frame follows one with checksum {frame.chain:08x}, and the one before has "
            f"{previous_crc:08x}: acknowledged writes are lost or exchanged",
        )


def _pack_fields(term: int, index: int, chain: int, length: int) -> bytes:
    return _FIELDS.pack(_MAGIC, VERSION, 0, term, index, chain, length)
