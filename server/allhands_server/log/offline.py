"""Logs and snapshot files without a daemon: their contents, and a new log from a file."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import field
from pathlib import Path

from allhands_proto.quick_dataclass import dataclass
from allhands_server.log.change_codec import encode_changes
from allhands_server.log.engine import Snapshot
from allhands_server.log.errors import LogDamaged, LogError, LogTooNew, LogUnavailable
from allhands_server.log.frame import VERSION, decode_frame
from allhands_server.log.migration import Migration
from allhands_server.log.recovery import LogHead, read_log, restore_snapshot
from allhands_server.log.snapshot_file import SnapshotDamaged, read_snapshot_file
from allhands_server.log.sqlite import FILE_NAME, SqliteEngine
from allhands_server.machine import Machine
from allhands_server.machine.changes import Change

_UNFINISHED = ".restoring"


@dataclass(slots=True)
class KindSize:
    """Number and size of the changes of one kind that make the state."""

    count: int = 0
    nbytes: int = 0
    """Encoded, as in a snapshot."""


@dataclass(frozen=True, slots=True)
class LogContents:
    """What a log or a snapshot file holds."""

    version: int
    """Format of the latest frame or chunk."""
    term: int
    index: int
    """The last slot of the log."""
    snapshot_nbytes: int
    frames: int
    """Slots behind the snapshot; 0 for a file."""
    frames_nbytes: int
    jobs: dict[str, dict[str, KindSize]] = field(default_factory=dict)
    """By job and kind of change; the empty name: of no job."""


def inspect_log(path: Path) -> LogContents:
    """Return the contents of a snapshot file, or of a folder that no daemon has open.

    Raises:
        LogError: a daemon has it open, it is damaged, or from a later version.
        OSError: it cannot be read.
    """
    if not path.is_dir():
        return _inspect_file(path)
    if not (path / FILE_NAME).exists():
        raise LogUnavailable(f"there is no log in {path}: no {FILE_NAME}")
    try:
        return asyncio.run(_inspect_folder(path))
    except LogUnavailable as error:
        raise LogUnavailable(
            f"{error}: ask its daemon with `allhands snapshot save FILE`, and inspect the file"
        ) from error


async def _inspect_folder(folder: Path) -> LogContents:
    engine = await SqliteEngine.open(folder)
    try:
        machine = Machine()
        restored = await read_log(engine, machine.restore)
        first, last = await engine.get_bounds()
        latest = await engine.read(last, 1)
    finally:
        await engine.close()
    return LogContents(
        decode_frame(latest[0].data, last).version if latest else VERSION,
        restored.head.term,
        restored.head.index,
        restored.snapshot_nbytes,
        last - first + 1,
        restored.frames_nbytes,
        _measure(machine.list_changes()),
    )


def _inspect_file(path: Path) -> LogContents:
    snapshot = read_snapshot_file(path)
    machine = Machine()
    head = _check_snapshot(path, snapshot, machine)
    nbytes = sum(map(len, snapshot.chunks))
    version = decode_frame(snapshot.chunks[0], 1).version
    jobs = _measure(machine.list_changes())
    return LogContents(version, head.term, snapshot.index, nbytes, 0, 0, jobs)


def restore_log(path: Path, folder: Path) -> LogContents:
    """Make a folder with the log of a snapshot file; return its contents.

    The folder is whole or not there, whatever happens meanwhile.

    Raises:
        FileExistsError: there is something in the folder.
        LogError: the file is damaged, or from a later version; there is no room.
        OSError: the file cannot be read, or the folder not be made.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(
            f"{folder} exists and is not empty: name a new folder, nothing is overwritten"
        )
    contents = _inspect_file(path)
    snapshot = read_snapshot_file(path)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = folder.with_name(f"{folder.name}{_UNFINISHED}.{os.getpid()}")
    unfinished.mkdir(mode=0o700)
    try:
        asyncio.run(_fill_folder(unfinished, snapshot))
        _synchronise(unfinished)
        unfinished.rename(folder)
        _synchronise(folder.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return contents


async def _fill_folder(folder: Path, snapshot: Snapshot) -> None:
    engine = await SqliteEngine.open(folder)
    try:
        await engine.save_snapshot(snapshot.index, _iterate_chunks(snapshot))
    finally:
        await engine.close()


async def _iterate_chunks(snapshot: Snapshot) -> AsyncIterator[bytes]:
    for chunk in snapshot.chunks:
        yield chunk


def _synchronise(folder: Path) -> None:
    """Make the entries of a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_snapshot(path: Path, snapshot: Snapshot, machine: Machine) -> LogHead:
    """Have the machine restore the snapshot of a file; return its place in the log."""
    try:
        return restore_snapshot(snapshot, machine.restore, Migration())
    except LogDamaged as error:
        raise SnapshotDamaged(path, str(error)) from error
    except LogTooNew as error:
        raise LogError(f"{path}: {error}") from error


def _measure(changes: Iterator[Change]) -> dict[str, dict[str, KindSize]]:
    jobs: dict[str, dict[str, KindSize]] = {}
    for change in changes:
        kinds = jobs.setdefault(getattr(change, "job", ""), {})
        size = kinds.setdefault(type(change).__name__, KindSize())
        size.count += 1
        size.nbytes += len(encode_changes((change,)))
    return jobs
