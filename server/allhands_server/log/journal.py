"""Group commit: the commits made during the append of one frame share the next frame."""

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Protocol

from allhands_server.log.append_times import AppendTimes
from allhands_server.log.change_codec import LogEntry, encode_changes
from allhands_server.log.engine import AppendResult, LogEngine, Taken
from allhands_server.log.errors import LogError, LogFull, LogTaken, LogUnavailable, LogUnwritable
from allhands_server.log.frame import Frame, encode_frame, make_frame
from allhands_server.log.recovery import LogHead, RestoredLog, encode_snapshot

logger = logging.getLogger(__name__)

_FRAME_NBYTES = 512 << 10
"""A frame takes in commits up to this size; one commit alone may be larger."""
_CHANGE_NBYTES = 64
"""Of a change beside its value, in the estimate of a commit's size."""
_SLOT_NBYTES = 1 << 10
"""Of a slot beside its bytes, in the size of a log: many small ones are slow to read."""
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

    def copy_state(self) -> Iterator[LogEntry]:
        """Return changes that make the state after all commits."""


class Journal:
    """Writer of a log; all methods belong to the running loop."""

    _kept_slots = 0
    """Slots before a snapshot that stay."""

    def __init__(self, engine: LogEngine, restored: RestoredLog, owner: JournalOwner) -> None:
        """Write to `engine` behind what was read of it, in a new term."""
        self._engine = engine
        self._owner = owner
        head = restored.head
        self._head = LogHead(head.index, head.crc, head.term + 1)
        self.times = AppendTimes()
        self._commits: deque[tuple[LogEntry, ...]] = deque()
        self._has_work = asyncio.Event()
        self._is_closing = False
        self._log_nbytes = restored.frames_nbytes
        """Of the frames since the last snapshot."""
        self._snapshot_nbytes = restored.snapshot_nbytes
        self._wanted: list[asyncio.Future[tuple[LogHead, Iterator[LogEntry]]]] = []
        """Of those who want a copy of the state."""
        self._copy: _StateCopy | None = None
        self._snapshot: asyncio.Task[None] | None = None
        self._writing = asyncio.create_task(self._write(), name="coordinator's log")

    @property
    def nbytes(self) -> int:
        """About how many bytes the log has: its snapshot, and the frames since."""
        return self._snapshot_nbytes + self._log_nbytes

    @property
    def pending(self) -> int:
        """Number of commits that are in no frame yet."""
        return len(self._commits)

    def append(self, changes: tuple[LogEntry, ...]) -> None:
        """Take in a commit; the owner is notified when the commit is durable."""
        self._commits.append(changes)
        self._has_work.set()

    async def close(self) -> None:
        """Write the pending commits, then close the engine. Idempotent."""
        await self.stop()
        await self._engine.close()

    async def stop(self) -> None:
        """Write the pending commits, and end. Idempotent."""
        self._is_closing = True
        self._has_work.set()
        await asyncio.wait([self._writing])
        if self._snapshot is not None:
            await asyncio.wait([self._snapshot])

    @property
    def _has_work_now(self) -> bool:
        """Whether there is a frame to append."""
        return bool(self._commits)

    async def _write(self) -> None:
        try:
            await self._write_frames()
        except LogError as error:
            self._owner.on_lost(error)
        except Exception as error:  # else every later write would wait for ever
            logger.exception("the coordinator's log cannot be written")
            self._owner.on_lost(LogUnwritable(f"{type(error).__name__}: {error}"))
        finally:
            self._drop_copies(LogUnavailable("the coordinator's log is closed"))

    async def _write_frames(self) -> None:
        while True:
            self._make_copy()
            if not self._has_work_now:
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
                self._drop_copies(error)
                self._owner.on_refused(error)
            else:
                if self._copy is not None:
                    self._copy.commits_left -= len(frame_commits)
                self._owner.on_durable(len(frame_commits))
                self._save_snapshot_if_due()

    def _take_commits(self) -> list[tuple[LogEntry, ...]]:
        """Take the commits of the next frame, not beyond those in a copy of the state."""
        if not self._commits:
            return []
        most = len(self._commits) if self._copy is None else self._copy.commits_left
        taken = [self._commits.popleft()]
        nbytes = _estimate_nbytes(taken[0])
        while len(taken) < most:
            nbytes += _estimate_nbytes(self._commits[0])
            if nbytes > _FRAME_NBYTES:
                break
            taken.append(self._commits.popleft())
        return taken

    async def _append(self, commits: list[tuple[LogEntry, ...]]) -> None:
        head = self._head
        payload = encode_changes(change for commit in commits for change in commit)
        frame = make_frame(head.term, head.index + 1, head.crc, payload)
        data = encode_frame(frame)
        began = time.monotonic()
        result = await self._put(frame, data)
        self.times.add(time.monotonic() - began, len(data))
        if isinstance(result, Taken):
            raise LogTaken(frame.index, result.data)
        self._head = LogHead(frame.index, frame.crc, frame.term)
        self._log_nbytes += _SLOT_NBYTES + len(data)

    async def _put(self, frame: Frame, data: bytes) -> AppendResult:
        """Append a frame, of these bytes, to the engine."""
        return await self._engine.append(frame.index, data)

    # ------------------------------------------------------------ snapshots

    async def copy_state(self) -> tuple[LogHead, Iterator[LogEntry]]:
        """Return the state after all commits so far, once these are durable, and its place.

        Raises:
            LogFull: the log has not taken these commits in.
            LogUnavailable: the log is closed, or gone.
        """
        if self._writing.done() or self._is_closing:
            raise LogUnavailable("the coordinator's log is closed")
        return await self._want_copy()

    def _want_copy(self) -> "asyncio.Future[tuple[LogHead, Iterator[LogEntry]]]":
        wanted: asyncio.Future[tuple[LogHead, Iterator[LogEntry]]] = (
            asyncio.get_running_loop().create_future()
        )
        self._wanted.append(wanted)
        self._has_work.set()
        return wanted

    def _make_copy(self) -> None:
        """Copy the state for those who want it; between two frames."""
        if self._copy is None and any(not one.done() for one in self._wanted):
            self._copy = _StateCopy(self._owner.copy_state(), len(self._commits), self._wanted)
            self._wanted = []
        if self._copy is not None and not self._copy.commits_left:
            self._copy.give(self._head)
            self._copy = None

    def _drop_copies(self, error: LogError) -> None:
        """Refuse the copies that are wanted or made."""
        if self._copy is not None:
            self._wanted += self._copy.wanted
            self._copy = None
        for one in self._wanted:
            if not one.done():
                one.set_exception(error)
        self._wanted = []

    def _save_snapshot_if_due(self) -> None:
        if self._snapshot is not None and not self._snapshot.done():
            return
        if self._log_nbytes < max(_LEAST_LOG_NBYTES, _LOG_FACTOR * self._snapshot_nbytes):
            return
        self._log_nbytes = 0
        saving = self._save_snapshot(self._want_copy())
        self._snapshot = asyncio.create_task(saving, name="snapshot of the log")

    async def _save_snapshot(
        self, copy: "asyncio.Future[tuple[LogHead, Iterator[LogEntry]]]"
    ) -> None:
        """Save a snapshot and drop the frames before; after a failure the frames are all there."""
        try:
            head, changes = await copy
            counted = _CountedChunks(encode_snapshot(head, changes))
            await self._engine.save_snapshot(head.index, counted)
            self._snapshot_nbytes = counted.nbytes
            await self._engine.trim(max(1, head.index + 1 - self._kept_slots))
        except LogFull:
            return  # the next frame says that there is no room
        except LogError as error:
            if not self._is_closing:
                self._on_snapshot_failed(error)
        except Exception:
            logger.exception(
                "the snapshot of the coordinator's log failed, so the log grows on; the next try "
                "comes when it has grown by %d MiB",
                max(_LEAST_LOG_NBYTES, _LOG_FACTOR * self._snapshot_nbytes) >> 20,
            )

    def _on_snapshot_failed(self, error: LogError) -> None:
        self._owner.on_lost(error)


class _StateCopy:
    """Copy of the state whose last commits are not durable yet, and those who want it."""

    def __init__(
        self,
        changes: Iterator[LogEntry],
        commits_left: int,
        wanted: "list[asyncio.Future[tuple[LogHead, Iterator[LogEntry]]]]",
    ) -> None:
        self._changes = changes
        self.commits_left = commits_left
        """Commits in the state that are not durable."""
        self.wanted = wanted

    def give(self, head: LogHead) -> None:
        """Pass the copy on, with its place in the log."""
        waiting = [one for one in self.wanted if not one.done()]
        for one, changes in zip(waiting, itertools.tee(self._changes, len(waiting)), strict=True):
            one.set_result((head, changes))


class _CountedChunks:
    """Chunks of a snapshot, and the size of those given out."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self.nbytes = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._chunks:
            self.nbytes += len(chunk)
            yield chunk


def _estimate_nbytes(changes: tuple[LogEntry, ...]) -> int:
    return sum(_CHANGE_NBYTES + len(getattr(one, "value", b"")) for one in changes)
