"""The elastic example, run as described in its head."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from allhands.testing.daemon import DaemonProcess, run_daemon

EXAMPLE = Path(__file__).parents[2] / "examples" / "elastic.py"
PATIENCE = 60.0
STEP_SECONDS = ("0.02", "0.1", "0.5")
"""Tried one after the other: on a busy host the training may end before the newcomers have come."""


class TrainedTooSoon(Exception):
    """The training was over before its ranks had changed."""


def launch(daemon: DaemonProcess, count: int, step_seconds: str) -> "subprocess.Popen[str]":
    """Run so many ranks of the example."""
    target = daemon.endpoint.address.target
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "allhands.cli.main", "run", "-n", str(count)),
            *("--min-size", "1", str(EXAMPLE)),
        ],
        env={
            **daemon.environ,
            "ALLHANDS_URL": f"ah://{target}/elastic",
            "ELASTIC_STEP_SECONDS": step_seconds,
        },
        stdout=subprocess.PIPE,
        text=True,
    )


def pids(launcher: "subprocess.Popen[str]", size: int, ranks: int) -> dict[int, int]:
    """Read until `ranks` ranks report a world of `size` ranks."""
    assert launcher.stdout is not None
    found: dict[int, int] = {}
    while len(found) < ranks:
        line = launcher.stdout.readline()
        if not line:
            assert launcher.wait(PATIENCE) == 0, "the launcher ended"
            raise TrainedTooSoon
        if said := re.search(rf"rank (\d+) of {size}, pid (\d+)", line):
            found[int(said[1])] = int(said[2])
    return found


def train(runtime: Path, step_seconds: str) -> str:
    """Train with three ranks, then two, four and three; return what was said.

    Raises:
        TrainedTooSoon: the training has ended before.
    """
    with run_daemon(runtime) as daemon, contextlib.ExitStack() as launchers:

        def start(count: int) -> "subprocess.Popen[str]":
            launcher = launch(daemon, count, step_seconds)
            launchers.callback(end, launcher)
            return launcher

        first = start(3)
        os.kill(pids(first, 3, 3)[1], signal.SIGKILL)
        pids(first, 2, 2)
        second = start(2)
        os.kill(pids(first, 4, 2)[0], signal.SIGKILL)
        said = ""
        for one in (first, second):
            output, _ = one.communicate(timeout=PATIENCE)
            said += output
            assert one.returncode == 0, output
        return said


def end(launcher: "subprocess.Popen[str]") -> None:
    """End a launcher that is still there, and let go of its output."""
    if launcher.poll() is None:
        launcher.terminate()
    launcher.communicate(timeout=PATIENCE)


def test_the_example_learns_digits_while_ranks_are_killed_and_added(tmp_path: Path) -> None:
    said = ""
    for step_seconds in STEP_SECONDS:
        runtime = tmp_path / step_seconds
        runtime.mkdir()
        with contextlib.suppress(TrainedTooSoon):
            said = train(runtime, step_seconds)
            break
    [accuracy] = re.findall(r"accuracy (\d\.\d+) after \d+ steps, 3 ranks", said)
    assert float(accuracy) >= 0.95
