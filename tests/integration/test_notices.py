"""Notices of killed coordinators."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from allhands.testing.poll import poll_until
from allhands_proto import notice


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runtime directory of this test."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("ALLHANDS_")]:
        monkeypatch.delenv(name)
    return notice.directory()


@pytest.fixture
def start() -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    started: list[subprocess.Popen[bytes]] = []

    def make(*command: str) -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen([sys.executable, *command]))
        return started[-1]

    yield make
    for process in started:
        process.kill()
        process.wait()


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process without reaping, a zombie from now on."""
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def notice_of(process: "subprocess.Popen[bytes]", port: int) -> notice.Notice:
    return notice.Notice(
        "127.0.0.1", port, "token", process.pid, "embedded", notice.read_start_ticks(process.pid)
    )


SLEEP = ("-c", "import signal; signal.pause()")


def test_a_killed_process_is_not_alive_though_its_parent_has_not_waited_for_it(
    start: Callable[..., "subprocess.Popen[bytes]"],
) -> None:
    killed, running = start(*SLEEP), start(*SLEEP)
    path, kept = notice.post(notice_of(killed, 1)), notice.post(notice_of(running, 2))
    kill(killed)
    assert [one.port for one in notice.list_live()] == [2]
    assert not path.exists()
    assert kept.exists()


def test_the_file_of_a_killed_rank_0_is_removed(
    start: Callable[..., "subprocess.Popen[bytes]"], folder: Path
) -> None:
    killed, running = start(*SLEEP), start(*SLEEP)
    paths = []
    for process in (killed, running):
        content: dict[str, object] = {
            "pid": process.pid,
            "born": notice.read_start_ticks(process.pid),
        }
        paths.append(notice.publish(folder / f"gathering-{process.pid}.json", content))
    kill(killed)
    notice.list_live()
    assert [path.exists() for path in paths] == [False, True]


def test_a_file_that_replaces_a_stale_one_meanwhile_stays(
    start: Callable[..., "subprocess.Popen[bytes]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, running = start(*SLEEP), start(*SLEEP)
    path = notice.post(notice_of(killed, 1))
    kill(killed)
    look = notice._is_stale

    def replace_after_looking(seen: Path) -> bool:
        found = look(seen)
        if seen == path:
            notice.publish(path, content_of(notice_of(running, 1)))
        return found

    monkeypatch.setattr(notice, "_is_stale", replace_after_looking)
    notice.remove_stale()
    assert json.loads(path.read_text())["pid"] == running.pid


def content_of(one: notice.Notice) -> dict[str, object]:
    return {**dataclasses.asdict(one)}


def test_a_killed_launcher_is_not_taken_for_a_coordinator(
    start: Callable[..., "subprocess.Popen[bytes]"], folder: Path, tmp_path: Path
) -> None:
    script = tmp_path / "wait.py"
    script.write_text("import signal; signal.pause()")
    launcher = start("-m", "allhands.cli.main", "run", "-n", "1", str(script))
    poll_until(lambda: any(folder.glob("coordinator-*.json")), 60)
    kill(launcher)
    done = subprocess.run(
        [sys.executable, "-m", "allhands.cli.main", "status"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "no coordinator of yours runs on this host" in done.stderr
    assert not any(folder.glob("coordinator-*.json"))
