"""Engine in a SQLite file, the default of `allhands serve --data-dir`.

One thread with one connection: no second connection means no checkpoint beside a writer, where
SQLite 3.7.0 to 3.51.2 could damage the file. The connection locks the file for itself; a second
daemon on the same folder is refused. `synchronous=FULL` makes an append durable at its commit.
"""

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from allhands_server.log.engine import Appended, AppendResult, Slot, SlotTrimmed, Snapshot, Taken
from allhands_server.log.errors import (
    LogDamaged,
    LogError,
    LogFull,
    LogTooNew,
    LogUnavailable,
    LogUnwritable,
)
from allhands_server.log.slots import (
    LogEnd,
    check_next,
    check_snapshot,
    check_trim,
    iterate_slots,
)

T = TypeVar("T")

FILE_NAME = "coordinator.db"
_APPLICATION_ID = 0x41484C47  # "AHLG"
_VERSION = 1
_PRAGMAS = (
    "PRAGMA locking_mode=EXCLUSIVE",  # first: WAL then needs no shared memory file
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA mmap_size=0",
    "PRAGMA cell_size_check=ON",
)
_TABLES = (
    "CREATE TABLE slots (number INTEGER PRIMARY KEY, data BLOB NOT NULL)",
    "CREATE TABLE snapshots (number INTEGER PRIMARY KEY)",
    "CREATE TABLE chunks (snapshot INTEGER NOT NULL, place INTEGER NOT NULL, data BLOB NOT NULL, "
    "PRIMARY KEY (snapshot, place)) WITHOUT ROWID",
    f"PRAGMA application_id={_APPLICATION_ID}",
    f"PRAGMA user_version={_VERSION}",
)
_SLOTS_A_TRIM = 32
_NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph"})


class SqliteEngine:
    """A log in a folder of this host."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="allhands log")
        self._database: sqlite3.Connection | None = None
        self._end = LogEnd(0)
        self._failure = ""
        """Reason for taking no more appends."""

    @classmethod
    async def open(cls, folder: Path) -> "SqliteEngine":
        """Open the log in a folder, made if missing, for this process alone.

        Raises:
            LogUnavailable: another process has it, or the folder cannot be used.
            LogDamaged: the file is none of allhands, or its own checks fail.
            LogTooNew: a later version of allhands has written it.
        """
        engine = cls(folder)
        try:
            engine._end = LogEnd(await engine._run(engine._open))
        except BaseException:
            await engine.close()
            raise
        return engine

    async def append(self, index: int, data: bytes) -> AppendResult:
        """See `LogEngine.append`."""
        if self._failure:
            raise LogUnwritable(f"{self._path}: {self._failure}")
        result = await self._run(lambda: self._append(index, data))
        if isinstance(result, Appended):
            self._end.move(index)
        return result

    async def read(self, first: int, limit: int = 256) -> Sequence[Slot]:
        """See `LogEngine.read`."""
        return await self._run(lambda: self._read(first, limit))

    async def get_bounds(self) -> tuple[int, int]:
        """See `LogEngine.get_bounds`."""
        return await self._run(self._get_bounds)

    def tail(self, first: int) -> AsyncIterator[Slot]:
        """See `LogEngine.tail`."""
        return iterate_slots(self.read, self._end, first)

    async def save_snapshot(self, index: int, chunks: AsyncIterable[bytes]) -> None:
        """See `LogEngine.save_snapshot`."""
        # A transaction for each chunk lets appends in between; the last one makes it a snapshot.
        await self._run(lambda: self._begin_snapshot(index))
        place = 0
        async for chunk in chunks:
            await self._run(partial(self._save_chunk, index, place, chunk))
            place += 1
        await self._run(lambda: self._finish_snapshot(index))
        if index > self._end.index:
            self._end.move(index)

    async def load_snapshot(self) -> Snapshot | None:
        """See `LogEngine.load_snapshot`."""
        return await self._run(self._load_snapshot)

    async def trim(self, below: int) -> None:
        """See `LogEngine.trim`."""
        contained = await self._run(self._find_snapshot)
        check_trim(below, contained or 0)
        # Piece by piece: a page that is freed costs as much as one that is written.
        first, last = await self.get_bounds()
        for start in range(first, min(below, last + 1), _SLOTS_A_TRIM):
            await self._run(partial(self._trim, min(start + _SLOTS_A_TRIM, below)))

    async def close(self) -> None:
        """See `LogEngine.close`."""
        database, self._database = self._database, None
        if database is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, database.close)
        self._thread.shutdown(wait=False)

    # ------------------------------------------------------------ on the thread

    async def _run(self, function: Callable[[], T]) -> T:
        """Run a function on the engine's thread; its errors of SQLite become those of the log."""

        def run() -> T:
            try:
                return function()
            except sqlite3.Error as error:
                raise self._translate(error) from error

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    def _open(self) -> int:
        """Open the file and return the last slot."""
        _prepare_folder(self._path)
        database = self._database = sqlite3.connect(
            self._path, timeout=0, isolation_level=None, check_same_thread=False
        )
        is_new = not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not is_new:
            self._check_owner(database)
        for pragma in _PRAGMAS:
            database.execute(pragma)
        with self._transaction() as connection:  # takes the lock, until the file is closed
            for statement in _TABLES if is_new else ():
                connection.execute(statement)
        found = [row[0] for row in database.execute("PRAGMA quick_check(3)")]
        if found != ["ok"]:
            raise LogDamaged(0, f"{self._path}: {'; '.join(found)}")
        return self._get_bounds()[1]

    def _check_owner(self, database: sqlite3.Connection) -> None:
        """Check that the file is a log that this version reads, before anything is changed."""
        if database.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
            raise LogDamaged(0, f"{self._path} is a database of another program")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version > _VERSION:
            raise LogTooNew(0, f"format {version}, and this version reads up to {_VERSION}")

    def _append(self, index: int, data: bytes) -> AppendResult:
        with self._transaction() as connection:
            query = "SELECT data FROM slots WHERE number = ?"
            if (there := connection.execute(query, (index,)).fetchone()) is not None:
                return Taken(there[0])
            first, last = self._get_bounds()
            if index < first:
                raise SlotTrimmed(index)
            check_next(index, last)
            connection.execute("INSERT INTO slots VALUES (?, ?)", (index, data))
        return Appended()

    def _read(self, first: int, limit: int) -> list[Slot]:
        query = "SELECT number, data FROM slots WHERE number >= ? ORDER BY number LIMIT ?"
        rows = self._get_database().execute(query, (first, limit))
        return [Slot(number, data) for number, data in rows]

    def _get_bounds(self) -> tuple[int, int]:
        database = self._get_database()
        first, last = database.execute("SELECT min(number), max(number) FROM slots").fetchone()
        if first is not None:
            return first, last
        kept = self._find_snapshot() or 0
        return kept + 1, kept

    def _begin_snapshot(self, index: int) -> None:
        check_snapshot(index, *self._get_bounds())
        with self._transaction() as connection:
            connection.execute("DELETE FROM snapshots WHERE number = ?", (index,))
            connection.execute(
                "DELETE FROM chunks WHERE snapshot NOT IN (SELECT number FROM snapshots)"
            )

    def _save_chunk(self, index: int, place: int, chunk: bytes) -> None:
        with self._transaction() as connection:
            connection.execute("INSERT INTO chunks VALUES (?, ?, ?)", (index, place, chunk))

    def _finish_snapshot(self, index: int) -> None:
        with self._transaction() as connection:
            connection.execute("DELETE FROM snapshots")
            connection.execute("INSERT INTO snapshots VALUES (?)", (index,))
            connection.execute("DELETE FROM chunks WHERE snapshot != ?", (index,))

    def _load_snapshot(self) -> Snapshot | None:
        if (found := self._find_snapshot()) is None:
            return None
        query = "SELECT data FROM chunks WHERE snapshot = ? ORDER BY place"
        rows = self._get_database().execute(query, (found,))
        return Snapshot(found, tuple(data for (data,) in rows))

    def _find_snapshot(self) -> int | None:
        """Return the last slot of the snapshot; None: there is none."""
        query = "SELECT max(number) FROM snapshots"
        found: int | None = self._get_database().execute(query).fetchone()[0]
        return found

    def _trim(self, below: int) -> None:
        with self._transaction() as connection:
            connection.execute("DELETE FROM slots WHERE number < ?", (below,))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Make a durable transaction of the block; roll back on errors."""
        database = self._get_database()
        database.execute("BEGIN IMMEDIATE")
        try:
            yield database
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise

    def _get_database(self) -> sqlite3.Connection:
        if self._database is None:
            raise LogUnavailable(f"{self._path} is closed")
        return self._database

    def _translate(self, error: sqlite3.Error) -> LogError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        text = f"{self._path}: {error}"
        match code:
            case sqlite3.SQLITE_FULL:
                return LogFull(f"{text}: make room on its disk")
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return LogUnavailable(f"{self._path} is in use by another process")
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                return LogDamaged(0, text)
            case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
                return LogUnavailable(text)
            case _:
                self._failure = f"an earlier write failed ({error})"
                return LogUnwritable(text)


def _prepare_folder(path: Path) -> None:
    """Make the folder and an empty file that only this user can read.

    Raises:
        LogUnavailable: that is impossible, or the folder is on a network file system, whose locks
            and synchronisation are not to be relied on.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        kind = find_file_system(path.parent)
        if kind in _NETWORK_FILE_SYSTEMS:
            raise LogUnavailable(
                f"{path.parent} is on a network file system ({kind}): give a folder on a disk of "
                "this host"
            )
        if not path.exists():
            # Not where it exists: closing a file gives up the locks that this process has on it.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise LogUnavailable(f"{path}: {error.strerror or error}") from error


def find_file_system(folder: Path, mounts: str = "/proc/self/mounts") -> str:
    """Return the type of a folder's file system; "" where that is not known."""
    try:
        lines = Path(mounts).read_text().splitlines()
    except OSError:
        return ""
    place, longest, kind = folder.resolve(), -1, ""
    for line in lines:
        fields = line.split(" ")
        mounted = Path(fields[1].encode().decode("unicode_escape"))
        if place.is_relative_to(mounted) and len(mounted.parts) >= longest:
            longest, kind = len(mounted.parts), fields[2]
    return kind
