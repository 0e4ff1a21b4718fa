"""`allhands snapshot save|restore|inspect`, with real daemons."""

import json
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from allhands.coordinator.client import Control
from support.served_daemon import ServedDaemon

_SNAPSHOT = (sys.executable, "-m", "allhands.cli.main", "snapshot")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[ServedDaemon]:
    daemon = ServedDaemon(tmp_path)
    daemon.start()
    yield daemon
    daemon.close()


def run(daemon: ServedDaemon, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run the command against a daemon."""
    command = [*_SNAPSHOT, *map(str, arguments)]
    return subprocess.run(
        command, env=daemon.environ, capture_output=True, text=True, timeout=100, check=False
    )


def check_run(daemon: ServedDaemon, *arguments: str | Path) -> str:
    done = run(daemon, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def connect(daemon: ServedDaemon, job: str = "j") -> Control:
    return Control(daemon.endpoint, job=job, timeout=60)


def fill(daemon: ServedDaemon) -> None:
    with connect(daemon) as control:
        control.put("a", b"1")
        control.put("a", b"22")
        control.put("gone", b"x")
        control.delete("gone")
        control.queue_push("q", b"first")
        control.queue_push("q", b"second")
        assert control.barrier("start", "p", ["p"]) == 1
    with connect(daemon, "other") as control:
        control.put("k", bytes(1000))


def check_filled(daemon: ServedDaemon) -> None:
    with connect(daemon) as control:
        assert control.get("a") == b"22"
        assert control.list() == ("a",)
        assert control.queue_pop("q") == b"first"
        assert control.queue_length("q") == 1
        assert control.barrier("start", "p", ["p"]) == 2
        assert control.put("b", b"") == 5
    with connect(daemon, "other") as control:
        assert control.get("k") == bytes(1000)


def serve_restored(daemon: ServedDaemon, folder: Path) -> None:
    """Start the daemon anew, on another folder."""
    daemon.close()
    daemon.data_dir = folder
    daemon.start()


def test_a_saved_state_is_restored_and_goes_on(daemon: ServedDaemon, tmp_path: Path) -> None:
    fill(daemon)
    file, folder = tmp_path / "state", tmp_path / "deep" / "restored"
    assert "2 jobs" in check_run(daemon, "save", file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with connect(daemon) as control:
        control.put("a", b"later")
    check_run(daemon, "restore", file, "--data-dir", folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    serve_restored(daemon, folder)
    check_filled(daemon)
    daemon.kill()
    daemon.start()
    with connect(daemon) as control:
        assert control.queue_pop("q") == b"second"
    assert {one.name for one in tmp_path.iterdir() if "restor" in one.name} == set()


def test_a_saved_state_is_of_one_moment_and_has_what_was_acknowledged(
    daemon: ServedDaemon, tmp_path: Path
) -> None:
    is_over, wrote, last = threading.Event(), threading.Event(), [0]

    def write() -> None:
        with connect(daemon) as control:
            while not is_over.is_set():
                value = str(last[0] + 1)
                control.multi_put({"a": value, "b": value})
                last[0] += 1
                wrote.set()

    writing = threading.Thread(target=write)
    writing.start()
    try:
        assert wrote.wait(60)
        before = last[0]
        check_run(daemon, "save", tmp_path / "state")
        after = last[0]
    finally:
        is_over.set()
        writing.join()
    check_run(daemon, "restore", tmp_path / "state", "--data-dir", tmp_path / "restored")
    serve_restored(daemon, tmp_path / "restored")
    with connect(daemon) as control:
        first, second = map(int, control.multi_get(["a", "b"]))
    assert first == second
    assert before <= first <= after + 1


def test_the_state_of_a_daemon_without_a_folder_is_saved_too(tmp_path: Path) -> None:
    source, target = ServedDaemon(tmp_path), ServedDaemon(tmp_path)
    try:
        source.start_without_folder()
        fill(source)
        check_run(source, "save", tmp_path / "state")
        check_run(source, "restore", tmp_path / "state", "--data-dir", tmp_path / "restored")
        serve_restored(target, tmp_path / "restored")
        check_filled(target)
    finally:
        source.close()
        target.close()


def test_nothing_is_overwritten(daemon: ServedDaemon, tmp_path: Path) -> None:
    fill(daemon)
    file, folder = tmp_path / "state", tmp_path / "folder"
    file.write_text("mine")
    done = run(daemon, "save", file)
    assert done.returncode == 1
    assert f"{file} exists" in done.stderr
    assert file.read_text() == "mine"
    check_run(daemon, "save", tmp_path / "saved")
    folder.mkdir()
    (folder / "file").write_text("mine")
    done = run(daemon, "restore", tmp_path / "saved", "--data-dir", folder)
    assert done.returncode == 1
    assert f"{folder} exists and is not empty" in done.stderr
    assert [one.name for one in folder.iterdir()] == ["file"]


def test_inspect_counts_what_a_file_and_a_folder_hold(daemon: ServedDaemon, tmp_path: Path) -> None:
    fill(daemon)
    check_run(daemon, "save", tmp_path / "state")
    done = run(daemon, "inspect", daemon.data_dir)
    assert done.returncode == 1
    assert "is in use by another process: ask its daemon" in done.stderr
    assert daemon.stop() == 0
    found = [
        json.loads(check_run(daemon, "inspect", path, "-o", "json"))
        for path in (tmp_path / "state", daemon.data_dir)
    ]
    for one in found:
        changes = {
            (job["job"], change["change"]): change
            for job in one["jobs"]
            for change in job["changes"]
        }
        assert changes["j", "KeyPut"]["count"] == 1
        assert changes["j", "QueuePushed"]["count"] == 2
        assert changes["other", "KeyPut"]["nbytes"] > 1000
        assert (one["format_version"], one["term"]) == (2, 1)
    assert found[0]["jobs"] == found[1]["jobs"]
    assert found[0]["index"] == found[1]["index"] == found[1]["frames"]
    table = check_run(daemon, "inspect", daemon.data_dir)
    assert any(line.split()[:3] == ["j", "QueuePushed", "2"] for line in table.splitlines())


def test_a_damaged_file_is_not_restored(daemon: ServedDaemon, tmp_path: Path) -> None:
    fill(daemon)
    whole = tmp_path / "whole"
    check_run(daemon, "save", whole)
    data = whole.read_bytes()
    altered = bytearray(data)
    altered[len(data) // 2] ^= 1
    spoiled = {
        "empty": (b"", "it does not begin like one"),
        "other": (b"SQLite format 3\0" * 10, "it does not begin like one"),
        "short": (data[:-1], "it is cut short"),
        "shorter": (data[:-40], "its snapshot is cut short"),
        "longer": (data + b"more", "it is cut short, or altered"),
        "altered": (bytes(altered), "the checksum does not match"),
        "index": (data[:9] + b"\x09" + data[10:], "the checksum of its header"),
    }
    for name, (content, why) in spoiled.items():
        (tmp_path / name).write_bytes(content)
        for command in (("inspect",), ("restore", "--data-dir", tmp_path / "new")):
            done = run(daemon, *command, tmp_path / name)
            assert done.returncode == 1
            assert f"{name} is no whole snapshot: " in done.stderr
            assert why in done.stderr
        assert not (tmp_path / "new").exists()


def test_a_file_of_a_later_version_says_so(daemon: ServedDaemon, tmp_path: Path) -> None:
    check_run(daemon, "save", tmp_path / "state")
    data = (tmp_path / "state").read_bytes()
    (tmp_path / "state").write_bytes(data[:4] + b"\x09\0" + data[6:])
    done = run(daemon, "restore", tmp_path / "state", "--data-dir", tmp_path / "new")
    assert done.returncode == 1
    assert "has layout 9, and this version of allhands reads up to 1" in done.stderr


def test_a_stranger_gets_no_snapshot(daemon: ServedDaemon, tmp_path: Path) -> None:
    command = [*_SNAPSHOT, "save", str(tmp_path / "state")]
    environ = {**daemon.environ, "ALLHANDS_TOKEN": "another"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "token" in done.stderr
    assert not list(tmp_path.glob("*state*"))
