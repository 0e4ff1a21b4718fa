"""Daemons whose disk is full, and logs that were shortened."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from allhands.coordinator.client import Control
from allhands.errors import Refused
from allhands_server.log.sqlite import FILE_NAME
from support.full_disk import can_mount, mount_small_disk
from support.served_daemon import ServedDaemon


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[ServedDaemon]:
    daemon = ServedDaemon(tmp_path)
    yield daemon
    daemon.close()


def connect(daemon: ServedDaemon) -> Control:
    return Control(daemon.endpoint, job="j", timeout=60)


def fill(control: Control) -> list[int]:
    """Write until the log is full; return the numbers that were acknowledged."""
    for number in range(10_000):
        try:
            control.put(f"large{number}", bytes(50_000))
        except Refused as error:
            refusal = str(error)
            break
    assert "the coordinator's log is full: " in refusal
    assert "database or disk is full: make room on its disk" in refusal
    return list(range(number))


@pytest.mark.skipif(not can_mount(), reason="a disk to be filled has to be mounted")
def test_a_full_disk_refuses_writes_by_name_and_serves_reads(daemon: ServedDaemon) -> None:
    with mount_small_disk(daemon.data_dir, 32) as disk:
        daemon.start()
        with connect(daemon) as control:
            control.put("a", b"1")
            disk.fill(spare=1 << 20)
            written = fill(control)
            assert control.get("a") == b"1"
            assert control.count() == 1 + len(written)
            disk.free()
            control.put("a", b"2")
        daemon.kill()
        daemon.start()
        with connect(daemon) as control:
            assert control.get("a") == b"2"
            assert control.count() == 1 + len(written)
        daemon.close()


def test_a_shortened_log_is_not_served(daemon: ServedDaemon) -> None:
    daemon.start()
    with connect(daemon) as control:
        for number in range(100):
            control.put(f"key{number}", bytes(1000))
    assert daemon.stop() == 0
    path = daemon.data_dir / FILE_NAME
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(RuntimeError, match=rf"damaged: .*{FILE_NAME}"):
        daemon.start()
