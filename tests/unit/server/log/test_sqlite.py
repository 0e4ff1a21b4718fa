"""The engine in a SQLite file: who may open it, and its failures."""

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from allhands_server.log import sqlite
from allhands_server.log.engine import Appended, Slot
from allhands_server.log.errors import (
    LogDamaged,
    LogFull,
    LogTooNew,
    LogUnavailable,
    LogUnwritable,
)
from allhands_server.log.sqlite import FILE_NAME, SqliteEngine, find_file_system
from programs import daemons
from support.ranks.launchers import as_script


async def test_only_this_user_can_read_the_files(tmp_path: Path) -> None:
    engine = await SqliteEngine.open(tmp_path / "a" / "data")
    await engine.append(1, b"secret")
    folder = tmp_path / "a" / "data"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(one.stat().st_mode) for one in folder.iterdir()} == {0o600}
    await engine.close()


async def test_a_second_opener_is_refused_until_the_first_has_closed(tmp_path: Path) -> None:
    def open_elsewhere() -> str:
        """Open it in another process; return what that says, "" for success."""
        command = [sys.executable, *as_script(daemons.open_log, str(tmp_path))]
        return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60).stderr

    engine = await SqliteEngine.open(tmp_path)
    with pytest.raises(LogUnavailable, match=f"{FILE_NAME} is in use by another process"):
        await SqliteEngine.open(tmp_path)
    # The attempt in this process has not taken away the lock that others see.
    assert "is in use by another process" in await asyncio.to_thread(open_elsewhere)
    await engine.close()
    assert await asyncio.to_thread(open_elsewhere) == ""


async def test_a_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE theirs (x)")
    database.close()
    before = path.read_bytes()
    with pytest.raises(LogDamaged, match="a database of another program"):
        await SqliteEngine.open(tmp_path)
    assert path.read_bytes() == before
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(LogDamaged, match="file is not a database"):
        await SqliteEngine.open(tmp_path)


async def test_a_log_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    await (await SqliteEngine.open(tmp_path)).close()
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        database.execute("PRAGMA user_version=7")
    database.close()
    with pytest.raises(LogTooNew, match="format 7, and this version reads up to 1"):
        await SqliteEngine.open(tmp_path)


async def test_a_damaged_file_is_refused_at_the_start(tmp_path: Path) -> None:
    engine = await SqliteEngine.open(tmp_path)
    for index in range(1, 200):
        await engine.append(index, os.urandom(500))
    await engine.close()
    path = tmp_path / FILE_NAME
    data = bytearray(path.read_bytes())
    for place in range(4096 * 3, len(data), 4096):
        data[place : place + 64] = bytes(64)
    path.write_bytes(data)
    with pytest.raises(LogDamaged):
        await SqliteEngine.open(tmp_path)


async def test_a_full_disk_takes_nothing_in_and_can_be_read(tmp_path: Path) -> None:
    engine = await SqliteEngine.open(tmp_path)
    await engine.append(1, b"first")
    assert engine._database is not None
    await engine._run(lambda: engine._get_database().execute("PRAGMA max_page_count=8"))
    with pytest.raises(LogFull, match="make room"):
        await engine.append(2, bytes(1 << 20))
    assert list(await engine.read(1)) == [Slot(1, b"first")]
    assert await engine.append(2, b"small") == Appended()
    await engine.close()


async def test_after_a_failed_write_nothing_more_is_taken_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await SqliteEngine.open(tmp_path)
    await engine.append(1, b"first")

    class FailedSync(sqlite3.OperationalError):
        sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC

    def fail(index: int, data: bytes) -> None:
        raise FailedSync("disk I/O error")

    with monkeypatch.context() as failing:
        failing.setattr(engine, "_append", fail)
        with pytest.raises(LogUnwritable, match="disk I/O error"):
            await engine.append(2, b"second")
    with pytest.raises(LogUnwritable, match="an earlier write failed"):
        await engine.append(2, b"second")
    assert list(await engine.read(1)) == [Slot(1, b"first")]
    await engine.close()


async def test_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "find_file_system", lambda folder: "nfs4")
    with pytest.raises(LogUnavailable, match=r"network file system \(nfs4\)"):
        await SqliteEngine.open(tmp_path)


def test_the_file_system_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    folder = tmp_path / "a b" / "c"
    folder.mkdir(parents=True)
    mounts = tmp_path / "mounts"
    escaped = str(tmp_path / "a b").replace(" ", r"\040")
    mounts.write_text(f"/dev/x / ext4 rw 0 0\nhost:/y {escaped} nfs4 rw 0 0\n")
    assert find_file_system(folder, str(mounts)) == "nfs4"
    assert find_file_system(tmp_path, str(mounts)) == "ext4"
    assert find_file_system(folder, str(tmp_path / "none")) == ""


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogUnavailable, match="file"):
        await SqliteEngine.open(tmp_path / "file" / "data")
