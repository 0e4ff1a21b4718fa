"""The SQLite database of a `FileStore`, with a count of its users."""

import os
import random
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from allhands.errors import StoreTimeout
from allhands_proto import notice

_LOCK_SECONDS = 30.0
"""How long others may keep the file to themselves; each change takes far less."""
_RETRY_SECONDS = 0.0002, 0.002

_TABLES = (
    "CREATE TABLE IF NOT EXISTS pairs (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS items (id INTEGER PRIMARY KEY AUTOINCREMENT, queue TEXT NOT NULL,"
    " value BLOB NOT NULL)",
    "CREATE INDEX IF NOT EXISTS of_queue ON items (queue, id)",
    "CREATE TABLE IF NOT EXISTS users (id INTEGER PRIMARY KEY, host TEXT NOT NULL,"
    " pid INTEGER NOT NULL, born TEXT NOT NULL, has_left INTEGER NOT NULL DEFAULT 0)",
)


class Database:
    """One user's handle of the file; threads and processes exclude each other by locks.

    The data is deliberately not flushed to disk: writes survive the processes, not the machine.
    """

    def __init__(self, path: Path, world_size: int) -> None:
        """Open the file, created if absent.

        Raises:
            ValueError: it is something else.
            OSError: it cannot be opened.
        """
        self.path = path
        self.world_size = world_size
        self._pid = os.getpid()
        self._open()
        with self.begin_write() as sql:
            for table in _TABLES:
                sql.execute(table)
            self._user_id = sql.execute(
                "INSERT INTO users (host, pid, born) VALUES (?, ?, ?)",
                (socket.gethostname(), self._pid, notice.read_start_ticks(self._pid)),
            ).lastrowid

    @contextmanager
    def begin_write(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection within a transaction, rolled back if the block raises."""
        with self._transaction(["BEGIN EXCLUSIVE"]) as sql:
            yield sql

    @contextmanager
    def begin_read(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection within a transaction that reads one snapshot."""
        with self._transaction(["BEGIN", "SELECT COUNT(*) FROM sqlite_schema"]) as sql:
            yield sql

    def wait_changed(self, seconds: float) -> None:
        """Return after a change by another thread of this process, or after a poll interval."""
        with self._changed:
            self._changed.wait(seconds)

    def leave(self) -> None:
        """Close the handle; the last user of the world deletes the file."""
        if os.getpid() != self._pid or self._user_id is None:
            return  # a forked child never came
        with suppress(OSError, ValueError, StoreTimeout), self.begin_write() as sql:
            sql.execute("UPDATE users SET has_left = 1 WHERE id = ?", (self._user_id,))
            users = sql.execute("SELECT host, pid, born, has_left FROM users").fetchall()
            if 0 < self.world_size <= len(users) and all(map(_is_gone, users)):
                self.path.unlink(missing_ok=True)  # with the lock held: nobody is at it
        self._user_id = None
        self._sql.close()

    def _open(self) -> None:
        self._changed = threading.Condition()
        try:
            self._sql = sqlite3.connect(
                self.path, timeout=0, isolation_level=None, check_same_thread=False
            )
            self._execute(["PRAGMA synchronous = OFF"])
        except sqlite3.Error as error:
            raise self._translate_error(error) from error

    @contextmanager
    def _transaction(self, begin: Sequence[str]) -> Iterator[sqlite3.Connection]:
        if os.getpid() != self._pid:
            # A forked child must neither use nor close a connection of its parent.
            self._pid, self._user_id, self._parent_connection = os.getpid(), None, self._sql
            self._open()
        with self._changed:
            try:
                self._execute(begin)
                try:
                    yield self._sql
                except BaseException:
                    self._sql.execute("ROLLBACK")
                    raise
                self._sql.execute("COMMIT")
            except sqlite3.Error as error:
                raise self._translate_error(error) from error
            self._changed.notify_all()

    def _execute(self, statements: Sequence[str]) -> None:
        """Execute statements that take the file's lock, waiting out brief lock holders."""
        until = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                for statement in statements:
                    self._sql.execute(statement).fetchall()
                return
            except sqlite3.OperationalError as error:
                if self._sql.in_transaction:
                    self._sql.execute("ROLLBACK")
                if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() >= until:
                    raise
            # Nothing tells when. SQLite's own pauses grow, so that who is late gets ever later.
            time.sleep(random.uniform(*_RETRY_SECONDS))

    def _translate_error(self, error: sqlite3.Error) -> Exception:
        said = f"the store in {self.path}: {error}"
        match error.sqlite_errorname:
            case "SQLITE_BUSY":
                return StoreTimeout(f"timeout: {said}; who keeps its lock for {_LOCK_SECONDS:g} s?")
            case "SQLITE_NOTADB" | "SQLITE_CORRUPT":
                return ValueError(f"{said}; is it the file of a FileStore?")
            case _:
                return OSError(f"{said}; its directory must exist, and you must own both")


def _is_gone(user: tuple[str, int, str, int]) -> bool:
    host, pid, born, has_left = user
    if has_left or host != socket.gethostname():
        return bool(has_left)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it lives, as somebody else
    return born not in ("", notice.read_start_ticks(pid))
