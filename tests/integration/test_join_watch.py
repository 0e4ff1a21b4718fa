"""What the launcher says on a terminal while a world forms, against a real daemon."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from allhands.coordinator.client import Control
from allhands.launcher.join_watch import JoinWatch
from allhands.testing.daemon import DaemonProcess
from allhands.testing.raw_member import RawMember
from support.terminal import run_on_terminal

Join = Callable[[int, int], RawMember]


async def test_it_names_the_missing_ranks_until_the_world_has_formed(
    daemon: DaemonProcess, control: Control, join_job: Join, job_name: str
) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    watch = JoinWatch(daemon.endpoint, job_name, 4, said.put, first=0.05)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(watch.run())
        await asyncio.to_thread(join_job, 1, 4)
        first = await said.get()
        assert first.startswith("1 rank has joined; waiting for ranks 0,2-3 (after ")
        for rank in (0, 2, 3):
            await asyncio.to_thread(join_job, rank, 4)
    assert control.job().state == "running", "and then the watch has ended by itself"


@pytest.mark.nightly
def test_the_launcher_watches_where_standard_error_is_a_terminal(tmp_path: Path) -> None:
    program = tmp_path / "late.py"
    program.write_text(
        "import os, time\n"
        "import allhands as ah\n"
        "time.sleep(13 * int(os.environ['RANK']))\n"
        "ah.init_process_group()\n"
    )
    command = [sys.executable, "-m", "allhands.cli.main", "run", "-n", "2", str(program)]
    done, shown = run_on_terminal(command)
    assert done.returncode == 0
    assert "allhands: 1 rank has joined; waiting for rank 1 (after 10" in shown
