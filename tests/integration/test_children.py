"""Child processes of a launcher: each status is known, whoever looks first."""

import os
import signal
import subprocess
import sys

import pytest

from allhands.launcher.child import Child


def _spawn(code: str) -> int:
    command = [sys.executable, "-I", "-S", "-c", code]
    return os.posix_spawn(sys.executable, command, os.environ)


def _wait_ended(pid: int) -> None:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _kill_and_reap(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


async def test_a_child_is_reaped_at_once_with_its_status() -> None:
    for status in range(1, 6):
        command = sys.executable, "-I", "-S", "-c", f"import os; os._exit({status})"
        child = Child.start(
            command, os.environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        assert child.reap() == status
        await child.wait_ended()


async def test_a_child_that_ended_before_it_was_watched_has_its_status() -> None:
    pid = _spawn("import os; os._exit(7)")
    _wait_ended(pid)
    child = Child.adopt(pid)
    await child.wait_ended()
    assert child.has_ended()
    assert child.reap() == 7


async def test_a_child_that_other_code_reaps_is_no_success() -> None:
    child = Child.adopt(_spawn("import signal; signal.pause()"))
    _kill_and_reap(child.pid)
    await child.wait_ended()
    with pytest.raises(ChildProcessError, match="reaped by other code"):
        child.reap()
