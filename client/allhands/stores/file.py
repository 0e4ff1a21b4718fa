"""A store in a file, for processes on a shared file system."""

import os
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from allhands.coordinator.kv.values import add_decimal, check_key, encode, format_keys, pair_up
from allhands.deadlines import Timeout, clip_or_raise, to_seconds
from allhands.errors import NotFound, StoreTimeout

if TYPE_CHECKING:
    from allhands.stores.database import Database

T = TypeVar("T")

_POLL_SECONDS = 0.001
_MAX_POLL_SECONDS = 0.01

_SET_SQL = (
    "INSERT INTO pairs (key, value) VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
)
_GET_SQL = "SELECT value FROM pairs WHERE key = ?"


class FileStore:
    """A `Store` in a file, an SQLite database, for processes that open the same path.

    Writers lock the file (fcntl), so that a network file system needs a lock service, as NFS has. A
    write of a killed process has happened entirely or not at all. Writes of other processes are
    found by polling every few milliseconds.

    With a `world_size`, the last of so many stores of the file to be closed deletes it. A store is
    closed by `close`, when its last reference goes, and when its process ends. Stores of killed
    processes of this host count as closed. Delete the file of an interrupted run before the next
    run.
    """

    def __init__(
        self, path: str | os.PathLike[str], world_size: int = -1, timeout: Timeout = 30.0
    ) -> None:
        """Open or create the file; with `world_size` -1 the file is never deleted.

        Raises:
            ValueError: `world_size` is neither positive nor -1, or the file is no such database.
            OSError: the file cannot be opened, or its directory does not exist.
        """
        if world_size != -1 and world_size < 1:
            raise ValueError(f"world_size must be positive, or -1 for any, not {world_size}")
        self._timeout = to_seconds(timeout)
        from allhands.stores.database import Database  # with SQLite, which few ranks need

        self._shared = _SharedDatabase(Database(Path(path).absolute(), world_size))
        self._database = self._shared.database

    @property
    def path(self) -> str:
        return str(self._database.path)

    @property
    def world_size(self) -> int:
        """Number of stores that will open the file, or -1 for unknown."""
        return self._database.world_size

    @property
    def timeout(self) -> float:
        return self._timeout

    def set_timeout(self, timeout: Timeout) -> None:
        self._timeout = to_seconds(timeout)

    def close(self) -> None:
        """Close this store's and all clones' handle of the file. Idempotent."""
        self._shared.close()

    def set(self, key: str, value: bytes | str) -> None:
        self.multi_set([key], [value])

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        limit = self._timeout if timeout is None else to_seconds(timeout)
        if keys:
            self._poll(lambda: self._read_values(keys), limit, lambda: self._describe_missing(keys))

    def add(self, key: str, amount: int) -> int:
        with self._database.begin_write() as sql:
            held = sql.execute(_GET_SQL, (check_key(key),)).fetchone()
            total = add_decimal(key, b"0" if held is None else held[0], amount)
            sql.execute(_SET_SQL, (key, str(total).encode()))
            return total

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        wanted, new = encode(expected), encode(desired)
        with self._database.begin_write() as sql:
            held = sql.execute(_GET_SQL, (check_key(key),)).fetchone()
            if (b"" if held is None else held[0]) == wanted:
                sql.execute(_SET_SQL, (key, new))
                return new
            return wanted if held is None else bytes(held[0])

    def append(self, key: str, value: bytes | str) -> None:
        with self._database.begin_write() as sql:
            held = sql.execute(_GET_SQL, (check_key(key),)).fetchone()
            sql.execute(_SET_SQL, (key, (b"" if held is None else held[0]) + encode(value)))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        if not keys:
            return []
        return self._poll(
            lambda: self._read_values(keys), self._timeout, lambda: self._describe_missing(keys)
        )

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        pairs = pair_up(keys, values)
        with self._database.begin_write() as sql:
            sql.executemany(_SET_SQL, pairs.items())

    def delete_key(self, key: str) -> bool:
        with self._database.begin_write() as sql:
            return sql.execute("DELETE FROM pairs WHERE key = ?", (check_key(key),)).rowcount > 0

    def num_keys(self) -> int:
        with self._database.begin_read() as sql:
            return int(sql.execute("SELECT COUNT(*) FROM pairs").fetchone()[0])

    def list_keys(self, prefix: str = "") -> list[str]:
        with self._database.begin_read() as sql:
            found = sql.execute(
                "SELECT key FROM pairs WHERE substr(key, 1, ?) = ?", (len(prefix), prefix)
            ).fetchall()
        return sorted(key for (key,) in found)

    def check(self, keys: Sequence[str]) -> bool:
        return self._read_values(keys) is not None

    def queue_push(self, key: str, value: bytes | str) -> None:
        with self._database.begin_write() as sql:
            sql.execute(
                "INSERT INTO items (queue, value) VALUES (?, ?)", (check_key(key), encode(value))
            )

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        if block:
            return self._poll(
                lambda: self._try_pop(key), self._timeout, lambda: f"pushed to queue {key!r}"
            )
        if (value := self._try_pop(key)) is None:
            raise NotFound(f"queue {key!r} is empty")
        return value

    def queue_len(self, key: str) -> int:
        with self._database.begin_read() as sql:
            counted = sql.execute("SELECT COUNT(*) FROM items WHERE queue = ?", (key,))
            return int(counted.fetchone()[0])

    def has_extended_api(self) -> bool:
        return True

    def clone(self) -> "FileStore":
        other = object.__new__(FileStore)
        other._timeout, other._shared, other._database = self._timeout, self._shared, self._database
        return other

    def _poll(
        self, read: Callable[[], T | None], limit: float, describe_missing: Callable[[], str]
    ) -> T:
        """Poll until the condition holds: files give no notice of changes."""
        limit = clip_or_raise(lambda: f"wait until somebody has {describe_missing()}", limit)
        until, pause = time.monotonic() + limit, _POLL_SECONDS
        while (found := read()) is None:
            left = until - time.monotonic()
            if left <= 0:
                raise StoreTimeout(
                    f"timeout: nobody {describe_missing()} in {limit:g} s ({self.path})"
                )
            self._database.wait_changed(min(pause, left))
            pause = min(2 * pause, _MAX_POLL_SECONDS)
        return found

    def _read_values(self, keys: Sequence[str]) -> list[bytes] | None:
        """Return the keys' values in one snapshot; None unless all exist."""
        with self._database.begin_read() as sql:
            found = [sql.execute(_GET_SQL, (key,)).fetchone() for key in keys]
        return None if None in found else [bytes(one[0]) for one in found]

    def _describe_missing(self, keys: Sequence[str]) -> str:
        return f"set {format_keys(key for key in keys if not self.check([key]))}"

    def _try_pop(self, key: str) -> bytes | None:
        if not self.queue_len(key):
            return None  # without a lock that would hold up who pushes
        with self._database.begin_write() as sql:
            first = sql.execute(
                "SELECT id, value FROM items WHERE queue = ? ORDER BY id LIMIT 1", (key,)
            ).fetchone()
            if first is None:
                return None
            sql.execute("DELETE FROM items WHERE id = ?", (first[0],))
            return bytes(first[1])


class _SharedDatabase:
    """Database shared by a store and all clones, closed with the last."""

    def __init__(self, database: "Database") -> None:
        self.database = database
        self.close = weakref.finalize(self, database.leave)
