"""Exit notices of ranks to the launcher, through the kernel."""

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
    ExitNoticeListener,
    FailingNotice,
    FailureCause,
    LeavingNotice,
    _send_notice,
    choose_directory,
    send_cause_notice,
    send_end_notice,
)
from programs import launched
from support.ranks.launchers import as_script

Ear = tuple[ExitNoticeListener, dict[str, str]]


@pytest.fixture
def ear() -> Iterator[Ear]:
    launch = choose_directory()
    announcements = ExitNoticeListener(launch)
    yield announcements, {LAUNCH_VARIABLE: launch}
    announcements.close()


def test_what_is_announced_is_heard_in_order_with_the_sender(ear: Ear) -> None:
    announcements, environment = ear
    cause = FailureCause(
        2, "a host", 17, "left", "rank 2 (host a host, pid 17) left the job \u2620"
    )
    send_cause_notice(environment, cause)
    send_end_notice(environment, is_failing=True)
    send_cause_notice(environment, None)
    send_end_notice(environment, is_failing=False)
    assert list(announcements.read_notices()) == [
        FailingNotice(os.getpid(), cause),
        LeavingNotice(os.getpid(), is_failing=True),
        FailingNotice(os.getpid(), None),
        LeavingNotice(os.getpid(), is_failing=False),
    ]


def test_a_text_of_any_length_comes_through_cut(ear: Ear) -> None:
    announcements, environment = ear
    send_cause_notice(environment, FailureCause(2, "host", 17, "left", "\u2620" * 100_000))
    [heard] = announcements.read_notices()
    assert isinstance(heard, FailingNotice)
    assert heard.cause is not None
    assert len(heard.cause.text) == 1024


@pytest.mark.parametrize("message", [b"", b"cause", b"cause {", b"cause [1]", b"cause 7", b"hello"])
def test_what_is_no_announcement_is_passed_over(ear: Ear, message: bytes) -> None:
    announcements, environment = ear
    _send_notice(environment, message)
    send_end_notice(environment, is_failing=True)
    assert list(announcements.read_notices()) == [LeavingNotice(os.getpid(), is_failing=True)]


def test_other_users_cannot_reach_the_launcher() -> None:
    launch = choose_directory()
    with contextlib.closing(ExitNoticeListener(launch)):
        assert stat.S_IMODE(os.stat(launch).st_mode) == 0o700
        if os.getuid() == 0:
            script = as_script(launched.send_as_another_user, f"{launch}/announcements")
            argv = [sys.executable, *script]
            assert subprocess.run(argv, check=False).returncode == 7
    assert not os.path.exists(launch)


def test_a_temporary_directory_of_any_length_leaves_room_for_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 100)))
    launch = choose_directory()
    with contextlib.closing(ExitNoticeListener(launch)) as announcements:
        send_end_notice({LAUNCH_VARIABLE: launch}, is_failing=False)
        assert list(announcements.read_notices()) == [LeavingNotice(os.getpid(), is_failing=False)]
