"""Times of leases in a file: of this run of the host only, and dropped where they may be old."""

import errno
import os
from pathlib import Path

import pytest

from allhands_server import lease_times
from allhands_server.lease_times import FILE_NAME, LeaseTimes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands until it is set."""
    now = [1000.0]
    monkeypatch.setattr(lease_times, "_read_clock", lambda: now[0])
    return now


def test_the_last_time_of_a_lease_is_found_again(tmp_path: Path, clock: list[float]) -> None:
    times = LeaseTimes(tmp_path)
    times.note("j", 7, 10.0)
    times.note("other:job", 8, 20.0)
    clock[0] += 4
    times.note("j", 7, 10.0)
    clock[0] += 1  # killed: nothing is closed
    assert LeaseTimes(tmp_path).find_remaining() == {("j", 7): 9.0, ("other:job", 8): 15.0}


def test_a_line_that_is_cut_does_not_count(tmp_path: Path, clock: list[float]) -> None:
    times = LeaseTimes(tmp_path)
    times.note("j", 7, 10.0)
    times.note("j", 8, 10.0)
    times.close()
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes()[:-2])
    assert LeaseTimes(tmp_path).find_remaining() == {("j", 7): 10.0}


def test_times_of_another_run_of_the_host_do_not_count(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    LeaseTimes(tmp_path).note("j", 7, 10.0)
    monkeypatch.setattr(lease_times, "_read_boot_id", lambda: "another")
    assert LeaseTimes(tmp_path).find_remaining() == {}


def test_a_host_without_such_a_clock_keeps_no_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_times, "_read_boot_id", lambda: "")
    times = LeaseTimes(tmp_path)
    times.note("j", 7, 10.0)
    assert not list(tmp_path.iterdir())
    times.close()


def test_a_large_file_is_written_anew_without_what_is_over(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_times, "_LARGEST_NBYTES", 2000)
    times = LeaseTimes(tmp_path)
    for lease in range(500):
        clock[0] += 1
        times.note("j", lease, 10.0)
        assert (tmp_path / FILE_NAME).stat().st_size < 2100
    found = LeaseTimes(tmp_path).find_remaining()
    assert set(found) >= {("j", lease) for lease in range(491, 500)}
    assert len(found) < 100


def test_where_a_time_cannot_be_written_none_is_left(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = LeaseTimes(tmp_path)
    times.note("j", 7, 10.0)

    def fail(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "write", fail)
        times.note("j", 7, 10.0)
    assert not list(tmp_path.iterdir())
    times.note("j", 7, 10.0)
    assert LeaseTimes(tmp_path).find_remaining() == {}
