"""Group commit: the commits made during the append of one frame share the next frame."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from allhands_server.log.change_codec import encode_changes
from allhands_server.log.engine import LogEngine, Taken
from allhands_server.log.errors import LogDamaged, LogError, LogFull, LogUnwritable
from allhands_server.log.frame import encode_frame, make_frame
from allhands_server.log.recovery import LogHead, encode_snapshot
from allhands_server.machine.changes import Change

logger = logging.getLogger(__name__)

_FRAME_NBYTES = 512 << 10
"""A frame takes in commits up to this size; one commit alone may be larger."""
_CHANGE_NBYTES = 64
"""Of a change beside its value, in the estimate of a commit's size."""
_LOG_FACTOR = 2
_LEAST_LOG_NBYTES = 16 << 20
"""A snapshot is made when the frames since the last one have this size, or twice its own."""


class JournalOwner(Protocol):
    """Receiver of the fate of commits: the coordinator."""

    def on_durable(self, commits: int) -> None:
        """Note the next `commits` commits as durable."""

    def on_refused(self, error: LogFull) -> None:
        """Note the refusal of all commits that are not durable."""

    def on_lost(self, error: LogError) -> None:
        """Note the loss of the log; the fate of the latest commits is unknown."""

    def copy_state(self) -> Iterator[Change]:
        """Return changes that make the state after all commits."""


class Journal:
    """Writer of a log; all methods belong to the running loop."""

    def __init__(self, engine: LogEngine, head: LogHead, owner: JournalOwner) -> None:
        """Write to `engine` behind `head`, in a new term."""
        self._engine = engine
        self._owner = owner
        self._head = LogHead(head.index, head.crc, head.term + 1)
        self._commits: deque[tuple[Change, ...]] = deque()
        self._has_work = asyncio.Event()
        self._is_closing = False
        self._log_nbytes = 0
        """Of the frames since the last snapshot."""
        self._snapshot_nbytes = 0
        self._snapshot: asyncio.Task[None] | None = None
        self._writing = asyncio.create_task(self._write(), name="coordinator's log")

    def append(self, changes: tuple[Change, ...]) -> None:
        """Take in a commit; the owner is notified when the commit is durable."""
        self._commits.append(changes)
        self._has_work.set()

    async def close(self) -> None:
        """Write the pending commits, then close the engine. Idempotent."""
        self._is_closing = True
        self._has_work.set()
        await asyncio.wait([self._writing])
        if self._snapshot is not None:
            await asyncio.wait([self._snapshot])
        await self._engine.close()

    async def _write(self) -> None:
        try:
            await self._write_frames()
        except LogError as error:
            self._owner.on_lost(error)
        except Exception as error:  # else every later write would wait for ever
            logger.exception("the coordinator's log cannot be written")
            self._owner.on_lost(LogUnwritable(f"{type(error).__name__}: {error}"))

    async def _write_frames(self) -> None:
        while True:
            if not self._commits:
                if self._is_closing:
                    return
                self._has_work.clear()
                await self._has_work.wait()
                continue
            frame_commits = self._take_commits()
            try:
                await self._append(frame_commits)
            except LogFull as error:
                self._commits.clear()
                self._owner.on_refused(error)
            else:
                self._owner.on_durable(len(frame_commits))
                self._save_snapshot_if_due()

    def _take_commits(self) -> list[tuple[Change, ...]]:
        """Take the commits of the next frame."""
        taken = [self._commits.popleft()]
        nbytes = _estimate_nbytes(taken[0])
        while self._commits:
            nbytes += _estimate_nbytes(self._commits[0])
            if nbytes > _FRAME_NBYTES:
                break
            taken.append(self._commits.popleft())
        return taken

    async def _append(self, commits: list[tuple[Change, ...]]) -> None:
        head = self._head
        payload = encode_changes(change for commit in commits for change in commit)
        frame = make_frame(head.term, head.index + 1, head.crc, payload)
        data = encode_frame(frame)
        if isinstance(await self._engine.append(frame.index, data), Taken):
            raise LogDamaged(frame.index, "another daemon has written it")
        self._head = LogHead(frame.index, frame.crc, frame.term)
        self._log_nbytes += len(data)

    def _save_snapshot_if_due(self) -> None:
        if self._commits or (self._snapshot is not None and not self._snapshot.done()):
            return  # the state has to be that of the head
        if self._log_nbytes < max(_LEAST_LOG_NBYTES, _LOG_FACTOR * self._snapshot_nbytes):
            return
        self._log_nbytes = 0
        saving = self._save_snapshot(self._head, self._owner.copy_state())
        self._snapshot = asyncio.create_task(saving, name="snapshot of the log")

    async def _save_snapshot(self, head: LogHead, changes: Iterator[Change]) -> None:
        counted = _CountedChunks(encode_snapshot(head, changes))
        try:
            await self._engine.save_snapshot(head.index, counted)
            await self._engine.trim(head.index + 1)
        except LogFull:
            return  # the frames are all there; the next frame says that there is no room
        except LogError as error:
            self._owner.on_lost(error)
        else:
            self._snapshot_nbytes = counted.nbytes


class _CountedChunks:
    """Chunks of a snapshot, and the size of those given out."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self.nbytes = 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.nbytes += len(chunk)
            yield chunk


def _estimate_nbytes(changes: tuple[Change, ...]) -> int:
    return sum(_CHANGE_NBYTES + len(getattr(one, "value", b"")) for one in changes)
