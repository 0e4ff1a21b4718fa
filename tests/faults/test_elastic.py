"""The elastic example, run as described in its head."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from allhands.testing.daemon import DaemonProcess, run_daemon

EXAMPLE = Path(__file__).parents[2] / "examples" / "elastic.py"
PATIENCE = 60.0


def launch(daemon: DaemonProcess, count: int) -> "subprocess.Popen[str]":
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
            "ELASTIC_STEP_SECONDS": "0.02",
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
        assert line, "the launcher ended"
        if said := re.search(rf"rank (\d+) of {size}, pid (\d+)", line):
            found[int(said[1])] = int(said[2])
    return found


def test_the_example_learns_digits_while_ranks_are_killed_and_added(tmp_path: Path) -> None:
    with run_daemon(tmp_path) as daemon:
        first = launch(daemon, 3)
        os.kill(pids(first, 3, 3)[1], signal.SIGKILL)
        pids(first, 2, 2)
        second = launch(daemon, 2)
        os.kill(pids(first, 4, 2)[0], signal.SIGKILL)
        said = ""
        for one in (first, second):
            output, _ = one.communicate(timeout=PATIENCE)
            said += output
            assert one.returncode == 0, output
        [accuracy] = re.findall(r"accuracy (\d\.\d+) after \d+ steps, 3 ranks", said)
        assert float(accuracy) >= 0.95
