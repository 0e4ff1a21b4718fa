"""Reading of a log: the changes in its snapshot and its frames, and the place of its end.

A snapshot is a row of chunks, each a frame: their indices are their places, and the first one
follows the log's frame that the snapshot ends with. The last chunk is empty, so that a row cut
short is noticed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice

from allhands_proto.quick_dataclass import dataclass
from allhands_server.log.change_codec import LogEntry, decode_changes, encode_changes
from allhands_server.log.engine import LogEngine, Slot, Snapshot
from allhands_server.log.errors import LogDamaged
from allhands_server.log.frame import Frame, check_chain, decode_frame, encode_frame, make_frame
from allhands_server.log.migration import Migration
from allhands_server.machine.changes import Change
from allhands_server.machine.leadership import Term

_CHANGES_A_PIECE = 100
_PIECE_NBYTES = 128 << 10
_CHUNK_NBYTES = 256 << 10
"""A chunk is larger by one piece at most, and a piece by one value."""
_READ_AT_ONCE = 64
"""Frames."""


@dataclass(frozen=True, slots=True)
class LogHead:
    """The end of a log."""

    index: int = 0
    """The last slot."""
    crc: int = 0
    """Of the frame in it."""
    term: int = 0
    """Of the last leader."""


@dataclass(frozen=True, slots=True)
class RestoredLog:
    """The end of a log that was read, and how much that was."""

    head: LogHead = LogHead()
    snapshot_nbytes: int = 0
    frames_nbytes: int = 0
    """Of the frames behind the snapshot."""


class LogReader:
    """Reader of one log, from its snapshot on, that passes on what it holds."""

    def __init__(
        self,
        restore: Callable[[Iterable[Change]], None],
        on_term: Callable[[Term], None] = lambda term: None,
    ) -> None:
        """Pass changes to `restore`, in order, piece by piece, and terms to `on_term`."""
        self._restore = restore
        self._on_term = on_term
        self._migration = Migration()
        self.head = LogHead()
        """The last slot that was read."""
        self._snapshot_nbytes = self._frames_nbytes = 0

    @property
    def restored(self) -> RestoredLog:
        """The end of the log so far, and how much was read."""
        return RestoredLog(self.head, self._snapshot_nbytes, self._frames_nbytes)

    async def read(self, engine: LogEngine) -> None:
        """Read a log up to its end.

        Raises:
            LogDamaged: it is not as it was acknowledged; some changes may have been passed on.
            LogTooNew: a later version of allhands has written it.
        """
        if (snapshot := await engine.load_snapshot()) is not None:
            self.head = restore_snapshot(snapshot, self._restore, self._migration, self._on_term)
            self._snapshot_nbytes = sum(map(len, snapshot.chunks))
        first, last = await engine.get_bounds()
        if first > self.head.index + 1:
            raise LogDamaged(self.head.index + 1, f"the log begins with slot {first:,}")
        if last < self.head.index:
            text = f"the log ends there, and its snapshot with slot {self.head.index:,}"
            raise LogDamaged(last, text)
        while slots := await engine.read(self.head.index + 1, _READ_AT_ONCE):
            for slot in slots:
                self.read_slot(slot)

    def read_slot(self, slot: Slot) -> None:
        """Read the next slot.

        Raises:
            LogDamaged: it is not as it was acknowledged, or is not the next one.
            LogTooNew: a later version of allhands has written it.
        """
        head = self.head
        if slot.index != head.index + 1:
            raise LogDamaged(head.index + 1, "the slot is missing")
        frame = decode_frame(slot.data, slot.index)
        check_chain(frame, head.crc)
        if frame.term < head.term:
            raise LogDamaged(slot.index, f"term {frame.term} follows term {head.term}")
        changes = _pass_terms(decode_changes(frame.payload, slot.index), self._on_term)
        self._restore(self._migration.migrate(frame.version, changes))
        self.head = LogHead(frame.index, frame.crc, frame.term)
        self._frames_nbytes += len(slot.data)


async def read_log(engine: LogEngine, restore: Callable[[Iterable[Change]], None]) -> RestoredLog:
    """Pass all changes of a log to `restore`, in order, piece by piece; return the log's end.

    Raises:
        LogDamaged: the log is not as it was acknowledged; some changes may have been passed.
        LogTooNew: a later version of allhands has written it.
    """
    reader = LogReader(restore)
    await reader.read(engine)
    return reader.restored


def _pass_terms(entries: Iterable[LogEntry], on_term: Callable[[Term], None]) -> Iterator[Change]:
    """Iterate over the changes of the state; pass the terms on."""
    for entry in entries:
        if isinstance(entry, Term):
            on_term(entry)
        else:
            yield entry


async def encode_snapshot(head: LogHead, changes: Iterator[LogEntry]) -> AsyncIterator[bytes]:
    """Iterate over the chunks of a snapshot of the state at `head`.

    Other tasks of the loop run between each hundred changes.
    """
    place, crc = 0, head.crc
    async for payload in _encode_payloads(changes):
        place += 1
        frame = make_frame(head.term, place, crc, payload)
        crc = frame.crc
        yield encode_frame(frame)


async def _encode_payloads(changes: Iterator[LogEntry]) -> AsyncIterator[bytes]:
    """Iterate over the payloads of chunks, of which the last one is empty."""
    pieces: list[bytes] = []
    nbytes = 0
    while piece := encode_changes(_take_piece(changes)):
        pieces.append(piece)  # messages of one repeated field, one behind the other, are one
        nbytes += len(piece)
        if nbytes >= _CHUNK_NBYTES:
            yield b"".join(pieces)
            pieces, nbytes = [], 0
        await asyncio.sleep(0)
    if pieces:
        yield b"".join(pieces)
    yield b""


def _take_piece(changes: Iterator[LogEntry]) -> Iterator[LogEntry]:
    """Iterate over the next changes that are encoded without a pause."""
    nbytes = 0
    for change in islice(changes, _CHANGES_A_PIECE):
        yield change
        nbytes += len(getattr(change, "value", b""))
        if nbytes >= _PIECE_NBYTES:
            return


def restore_snapshot(
    snapshot: Snapshot,
    restore: Callable[[Iterable[Change]], None],
    migration: Migration,
    on_term: Callable[[Term], None] = lambda term: None,
) -> LogHead:
    """Pass all changes of a snapshot to `restore`, and its term on; return the end of its log.

    Raises:
        LogDamaged: it is cut short or altered; some changes may have been passed.
        LogTooNew: a later version of allhands has written it.
    """
    frames: list[Frame] = []
    for place, chunk in enumerate(snapshot.chunks, 1):
        frames.append(decode_frame(chunk, place))
        if place > 1:
            check_chain(frames[-1], frames[-2].crc)
        changes = _pass_terms(decode_changes(frames[-1].payload, snapshot.index), on_term)
        restore(migration.migrate(frames[-1].version, changes))
    if not frames or frames[-1].payload:
        raise LogDamaged(snapshot.index, "its snapshot is cut short")
    return LogHead(snapshot.index, frames[0].chain, frames[0].term)
