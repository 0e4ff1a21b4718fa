"""`allhands top` on real daemons: screens, keys, an absent coordinator, a terminal of 80 by 24."""

import contextlib
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import pytest

from allhands.coordinator.client import Control
from allhands.coordinator.diagnosis import Diagnosis
from allhands.coordinator.status import JobStatus
from allhands.testing.daemon import DaemonProcess, run_daemon
from allhands.testing.raw_member import RawMember
from allhands.top.app import Top
from allhands_proto.v1 import coordinator_pb2 as wire
from support.async_poll import poll_async

Join = Callable[[int, int], RawMember]
SIZE = (80, 24)
LIMIT = 20.0


class Source:
    """A daemon, as the command gives it to the view."""

    def __init__(self, control: Control) -> None:
        self._control = control

    @property
    def name(self) -> str:
        return "the daemon"

    def read_jobs(self) -> Sequence[JobStatus]:
        return self._control.jobs(timeout=2)

    def diagnose(self, job: str) -> Diagnosis:
        return self._control.diagnose(job, timeout=5)


def read_screen(app: Top) -> str:
    """Return what the screen shows, as text."""
    return "\n".join(line.text.rstrip() for line in app.screen._compositor.render_strips())


async def wait_for(app: Top, said: str) -> str:
    """Return the screen once it shows `said`."""

    async def is_shown() -> bool:
        return said in read_screen(app)

    await poll_async(is_shown, LIMIT)
    return read_screen(app)


@pytest.fixture
def stalled_job(control: Control, join_job: Join) -> str:
    """A job of two, whose rank 0 has been in an all_reduce for 9 s without rank 1."""
    first, second = join_job(0, 2), join_job(1, 2)
    for member, operation, sequence in ((first, "all_reduce", 7), (second, "", 6)):
        member.send(open_group=wire.OpenGroup(group="world", ranks=[0, 1]))
        progress = wire.Progress(
            group="world", sequence=sequence, completed=6, operation=operation, elapsed=9.0
        )
        member.send(heartbeat=wire.Heartbeat(progress=[progress]))
    assert control.job_name is not None
    return control.job_name


async def test_keys_lead_from_the_jobs_to_a_job_to_a_rank_and_back(
    control: Control, stalled_job: str
) -> None:
    app = Top(Source(control), stalled_job)
    async with app.run_test(size=SIZE) as pilot:
        screen = await wait_for(app, "rank 1 missing for 9")
        assert "all_reduce #7 of group world" in screen
        assert "awaited" in screen
        assert all(len(line) <= SIZE[0] for line in screen.splitlines())
        await pilot.press("o")
        await wait_for(app, "by longest in a call")
        await pilot.press("enter")
        await wait_for(app, f"rank 0 of job {stalled_job}")
        await wait_for(app, "host node-a, pid 4000")
        await pilot.press("escape", "escape")
        await wait_for(app, "CALLS/S")
        await wait_for(app, stalled_job)
        await pilot.press("escape")
        await wait_for(app, "CALLS/S")


async def test_an_absent_coordinator_is_told_and_asked_again(tmp_path: Path) -> None:
    with run_daemon(tmp_path) as daemon, Control(daemon.endpoint, job="a") as control:
        app = Top(Source(control))
        async with app.run_test(size=SIZE):
            await wait_for(app, "0 jobs")
            daemon.process.kill()
            daemon.process.wait()
            await wait_for(app, "no answer from the daemon for")
            assert "JOB" in read_screen(app)


@contextlib.contextmanager
def start_on_terminal(
    daemon: DaemonProcess, *arguments: str
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """Start a command on a terminal of its own; what it writes can be read until it ends."""
    parent, child = pty.openpty()
    termios.tcsetwinsize(child, (SIZE[1], SIZE[0]))
    process = subprocess.Popen(
        [sys.executable, "-m", "allhands.cli.main", *arguments],
        env={**daemon.environ, "TERM": "xterm-256color"},
        stdin=child,
        stdout=child,
        stderr=child,
        start_new_session=True,
    )
    os.close(child)
    with os.fdopen(parent, "r+b", buffering=0) as terminal:
        try:
            yield process, terminal
        finally:
            process.kill()
            process.wait()


def read_to_end(terminal: IO[bytes]) -> bytes:
    shown = b""
    with contextlib.suppress(OSError):  # nobody has the other end open any more
        while more := terminal.read(4096):
            shown += more
    return shown


def test_the_command_shows_a_screen_and_ends_with_q(
    daemon: DaemonProcess, stalled_job: str
) -> None:
    with start_on_terminal(daemon, "top", stalled_job) as (process, terminal):
        shown = b""
        while b"all_reduce #7" not in shown:
            assert process.poll() is None, shown.decode(errors="replace")
            shown += terminal.read(4096)
        terminal.write(b"q")
        read_to_end(terminal)
        assert process.wait(LIMIT) == 0


def test_a_job_that_is_not_there_is_an_error_before_the_screen(daemon: DaemonProcess) -> None:
    with start_on_terminal(daemon, "top", "no-such") as (process, terminal):
        shown = read_to_end(terminal)
        assert process.wait(LIMIT) == 1
    assert shown.startswith(b"allhands: no job 'no-such' at this coordinator")


def test_without_a_terminal_it_says_what_to_use(daemon: DaemonProcess) -> None:
    done = daemon.run_command("top")
    assert done.returncode == 2
    assert "allhands status -o json" in done.stderr


def test_without_textual_it_says_what_to_install(
    daemon: DaemonProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "textual.py").write_text("raise ModuleNotFoundError(name='textual')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setitem(daemon.environ, "PYTHONPATH", path)
    done = daemon.run_command("top")
    assert done.returncode == 2
    assert "allhands[top]" in done.stderr
