"""`allhands run` and signals: the notified processes, and the end of every process."""

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from allhands.testing.poll import poll_until
from programs import launched
from support.ranks.launchers import (
    COMMAND,
    PATIENCE,
    Start,
    as_script,
    ends,
    environment,
    pids_of_hanging,
)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_ranks_are_told_and_the_launcher_ends_as_its_signal_says(
    run: Start, signum: signal.Signals
) -> None:
    told = signal.SIGINT if signum is signal.SIGINT else signal.SIGTERM
    program = as_script(launched.tidy_up_at, int(told))
    running = run("-n", "2", *program)
    assert sorted(running.line() for _ in range(2)) == ["[0] ready", "[1] ready"]
    running.process.send_signal(signum)
    assert running.status() == 128 + signum
    assert sorted(running.output()) == ["[0] tidied up", "[1] tidied up"]


@pytest.mark.parametrize(
    "signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT]
)
def test_no_process_is_left_whatever_signal_ends_the_launcher(
    run: Start, signum: signal.Signals
) -> None:
    running = run("-n", "2", "--grace", "0.2", *as_script(launched.hang))
    pids = pids_of_hanging(running, 2)
    assert len(pids) == 6
    launch = Path(psutil.Process(pids[0]).environ()["ALLHANDS_LAUNCH"])
    assert launch.is_dir()
    running.process.send_signal(signum)
    assert all(ends(pid) for pid in pids)
    assert running.status() in (-signum, 128 + signum)
    poll_until(lambda: not launch.exists())


def test_ranks_end_with_the_launcher_also_where_the_guardian_was_killed(run: Start) -> None:
    running = run("-n", "2", *as_script(launched.hang))
    pids = [pids_of_hanging(running, 1) for _ in range(2)]
    ranks = [rank for rank, *_ in pids]
    for child in psutil.Process(running.process.pid).children():
        if child.pid not in ranks:
            child.kill()
            assert ends(child.pid)
    running.process.kill()
    try:
        assert all(ends(pid) for pid in ranks)
    finally:
        for child_of_rank in (pid for _, *children in pids for pid in children):
            os.kill(child_of_rank, signal.SIGKILL)  # what only the guardian would have ended


def test_a_second_signal_kills_at_once(run: Start) -> None:
    program = as_script(launched.stay_after_signals)
    running = run("-n", "1", *program)
    assert running.line() == "[0] ready"
    running.process.send_signal(signal.SIGINT)
    assert running.line() == "[0] interrupted"
    running.process.send_signal(signal.SIGINT)
    assert running.status() == 130
    assert "[0] asked to end" not in running.output()  # as a launcher does that got one signal


def test_children_that_ranks_leave_behind_end_with_the_launch(run: Start) -> None:
    program = as_script(launched.leave_children)
    running = run("-n", "1", *program)
    assert running.status() == 0
    assert all(ends(int(line.split()[1])) for line in running.output())


def test_a_launcher_that_nobody_reads_from_still_obeys_a_signal(tmp_path: Path) -> None:
    program = as_script(launched.write_long_lines_for_ever)
    process = subprocess.Popen(
        [*COMMAND, "-n", "1", *program],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    with process:
        assert process.stdout is not None
        process.stdout.read(1)  # it is up; from now on the pipe fills
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 143


@pytest.mark.parametrize("start", ["fork", "exec"])
def test_statuses_are_known_where_the_launcher_was_told_to_ignore_children(
    run: Start, start: str
) -> None:
    ignored = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # which programs inherit
    try:
        running = run("-n", "2", "--start", start, *as_script(launched.end_with, 0, 3))
    finally:
        signal.signal(signal.SIGCHLD, ignored)
    assert running.status() == 3
    assert "rank 1 failed first: exit status 3" in running.errors[-1]
