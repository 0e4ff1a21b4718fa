"""Files with a snapshot of the coordinator's durable state.

Layout, little endian:

    magic     4 bytes  "ahls"
    version   u16      of this layout; the chunks have the version of frames
    reserved  u16      0
    index     u64      the last slot of the log that the state contains; 0: there was no log
    crc       u32      CRC-32 of the fields above
    chunks             each with its length before it, u32; the last chunk is an empty frame

The chunks are those of a snapshot in a log, each with a checksum and with that of the chunk
before, so that a file that was cut, altered or put together of two is noticed.
"""

import os
import struct
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from allhands_server.log.change_codec import LogEntry
from allhands_server.log.engine import Snapshot
from allhands_server.log.errors import LogError
from allhands_server.log.frame import HEADER_NBYTES, LARGEST_PAYLOAD
from allhands_server.log.recovery import LogHead, encode_snapshot

VERSION = 1

_MAGIC = b"ahls"
_FIELDS = struct.Struct("<4sHHQ")
_NUMBER = struct.Struct("<I")
_HEADER_NBYTES = _FIELDS.size + _NUMBER.size


class SnapshotDamaged(LogError):
    """The file is no snapshot, or not as it was saved."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} is no whole snapshot: {why}")


async def encode_snapshot_file(head: LogHead, changes: Iterator[LogEntry]) -> AsyncIterator[bytes]:
    """Iterate over the bytes of a file with the state at `head`."""
    fields = _FIELDS.pack(_MAGIC, VERSION, 0, head.index)
    yield fields + _NUMBER.pack(zlib.crc32(fields))
    async for chunk in encode_snapshot(head, changes):
        yield _NUMBER.pack(len(chunk)) + chunk


def read_snapshot_file(path: Path) -> Snapshot:
    """Return the snapshot in a file; its chunks are not checked.

    Raises:
        SnapshotDamaged: the file is of another kind, or cut short.
        LogError: a later version of allhands has written it.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        header = file.read(_HEADER_NBYTES)
        if len(header) < _HEADER_NBYTES or not header.startswith(_MAGIC):
            raise SnapshotDamaged(path, "it does not begin like one")
        _, version, _, index = _FIELDS.unpack_from(header)
        if version > VERSION:
            raise LogError(
                f"{path} has layout {version}, and this version of allhands reads up to {VERSION}: "
                "use the one that saved it, or a later one"
            )
        if _NUMBER.unpack_from(header, _FIELDS.size) != (zlib.crc32(header[: _FIELDS.size]),):
            raise SnapshotDamaged(path, "the checksum of its header does not match")
        chunks = []
        while file.tell() < size:
            prefix = file.read(_NUMBER.size)
            length = _NUMBER.unpack(prefix)[0] if len(prefix) == _NUMBER.size else size
            if length > min(size - file.tell(), HEADER_NBYTES + LARGEST_PAYLOAD):
                raise SnapshotDamaged(path, "it is cut short, or altered")
            chunks.append(file.read(length))
    return Snapshot(index, tuple(chunks))
