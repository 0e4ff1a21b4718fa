"""Logs that older versions of allhands have written, and what becomes of them."""

import shutil
from pathlib import Path

import pytest

from allhands_server.coordinator import Coordinator
from allhands_server.log import frame as frames
from allhands_server.log.errors import LogTooNew
from allhands_server.log.sqlite import FILE_NAME, SqliteEngine
from allhands_server.machine import requests
from allhands_server.machine.changes import KeyPut
from allhands_server.machine.store.keys import Count, Get, Set
from allhands_server.machine.store.queues import QueueLength, QueuePop

RECORDED = Path(__file__).parent / "recorded"


async def open_log(folder: Path) -> Coordinator:
    return await Coordinator.open(await SqliteEngine.open(folder))


async def close(coordinator: Coordinator) -> None:
    coordinator.close()
    await coordinator.close_log()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the log of format 1: a snapshot of 28 frames, and 26 frames behind it."""
    shutil.copyfile(RECORDED / "version1.db", tmp_path / FILE_NAME)
    return tmp_path


async def test_a_log_of_format_1_is_read_as_it_was_written(folder: Path) -> None:
    coordinator = await open_log(folder)
    assert await coordinator.ask(Count("training"), None) == 41
    assert (await coordinator.ask(Get("training", "key39"), None)).value == (
        b"value 39 " + bytes([39]) * 40
    )
    assert (await coordinator.ask(Get("other", "name é"), None)).value == b"text"
    assert await coordinator.ask(QueueLength("training", "work"), None) == 2
    assert await coordinator.ask(QueuePop("training", "work"), None) == b"second"
    barrier = requests.Barrier("training", "start", "p", ("p",))
    assert await coordinator.ask(barrier, None) == 3
    assert await coordinator.ask(Set("training", "next", b""), None) == 46
    await close(coordinator)


async def test_keys_of_format_1_get_a_creation_and_a_version(folder: Path) -> None:
    coordinator = await open_log(folder)
    found = {}
    for key in ("key08", "key39", "steps", "last"):
        record = await coordinator.ask(Get("training", key), None)
        assert isinstance(record, KeyPut)
        found[key] = (record.created, record.revision, record.version)
    assert found == {
        "key08": (9, 44, 2),  # its first put is in the snapshot
        "key39": (40, 40, 1),
        "steps": (41, 42, 2),
        "last": (45, 45, 1),
    }
    await close(coordinator)


async def test_a_log_goes_on_in_the_format_of_now_and_an_older_daemon_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = await open_log(folder)
    await coordinator.ask(Set("training", "key08", b"new"), None)
    await close(coordinator)
    coordinator = await open_log(folder)
    assert (await coordinator.ask(Get("training", "key08"), None)).version == 3
    assert await coordinator.ask(Count("training"), None) == 41
    await close(coordinator)
    with monkeypatch.context() as older:
        older.setattr(frames, "VERSION", 1)
        with pytest.raises(LogTooNew, match=r"format 2, and this version reads up to 1: start it"):
            await open_log(folder)
