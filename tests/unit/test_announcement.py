"""What ranks tell their launcher, by way of the kernel."""

import contextlib
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from allhands.runtime.exit_notice import (
    LAUNCH_VARIABLE,
    Announcements,
    Cause,
    Failing,
    Leaving,
    _send,
    announce_cause,
    announce_end,
    choose_directory,
)

Ear = tuple[Announcements, dict[str, str]]


@pytest.fixture
def ear() -> Iterator[Ear]:
    launch = choose_directory()
    announcements = Announcements(launch)
    yield announcements, {LAUNCH_VARIABLE: launch}
    announcements.close()


def test_what_is_announced_is_heard_in_order_with_the_sender(ear: Ear) -> None:
    announcements, environment = ear
    cause = Cause(2, "a host", 17, "left", "rank 2 (host a host, pid 17) left the job \u2620")
    announce_cause(environment, cause)
    announce_end(environment, failing=True)
    announce_cause(environment, None)
    announce_end(environment, failing=False)
    assert list(announcements.heard()) == [
        Failing(os.getpid(), cause),
        Leaving(os.getpid(), failing=True),
        Failing(os.getpid(), None),
        Leaving(os.getpid(), failing=False),
    ]


def test_a_text_of_any_length_comes_through_cut(ear: Ear) -> None:
    announcements, environment = ear
    announce_cause(environment, Cause(2, "host", 17, "left", "\u2620" * 100_000))
    [heard] = announcements.heard()
    assert isinstance(heard, Failing)
    assert heard.cause is not None
    assert len(heard.cause.text) == 1024


@pytest.mark.parametrize("message", [b"", b"cause", b"cause {", b"cause [1]", b"cause 7", b"hello"])
def test_what_is_no_announcement_is_passed_over(ear: Ear, message: bytes) -> None:
    announcements, environment = ear
    _send(environment, message)
    announce_end(environment, failing=True)
    assert list(announcements.heard()) == [Leaving(os.getpid(), failing=True)]


def test_other_users_cannot_reach_the_launcher() -> None:
    launch = choose_directory()
    with contextlib.closing(Announcements(launch)):
        assert stat.S_IMODE(os.stat(launch).st_mode) == 0o700
        if os.getuid() == 0:
            forbidden = """
import os, socket, sys
os.setgroups([]), os.setgid(65534), os.setuid(65534)
try:
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"leaving", sys.argv[1])
except PermissionError:
    sys.exit(7)
"""
            argv = [sys.executable, "-c", forbidden, f"{launch}/announcements"]
            assert subprocess.run(argv, check=False).returncode == 7
    assert not os.path.exists(launch)


def test_a_temporary_directory_of_any_length_leaves_room_for_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 100)))
    launch = choose_directory()
    with contextlib.closing(Announcements(launch)) as announcements:
        announce_end({LAUNCH_VARIABLE: launch}, failing=False)
        assert list(announcements.heard()) == [Leaving(os.getpid(), failing=False)]
