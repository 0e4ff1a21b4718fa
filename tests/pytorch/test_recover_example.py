"""The example of training through losses, used as described in its head."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "torch" / "recover.py"
PATIENCE = 90.0


def launched(count: int, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "allhands.cli.main", "run", "-n", str(count)),
            *("--min-size", "1", str(EXAMPLE), *options),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )


def check(said: str, left: int) -> None:
    """Check that the loss has fallen, as far as without lost ranks."""
    losses = [float(loss) for loss in re.findall(r"loss (\d\.\d+)", said)]
    assert losses[-1] < 0.5 * losses[0], said
    [(ranks, difference)] = re.findall(r"(\d+) ranks are left; .* differ .* by (\S+) at most", said)
    assert int(ranks) == left
    assert float(difference) < 1e-4


def test_the_example_trains_on_while_its_ranks_kill_themselves() -> None:
    running = launched(4, "--steps", "100", "--kill", "20:1", "--kill", "40:2")
    said, _ = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, said
    assert said.count("of 3, pid") == 3
    assert said.count("of 2, pid") == 2
    check(said, 2)


def test_the_example_trains_on_when_somebody_kills_a_rank_at_any_time() -> None:
    running = launched(3, "--steps", "1500", "--kill", "0:-1")
    assert running.stdout is not None
    said, victim = "", 0
    for line in running.stdout:
        said += line
        if found := re.search(r"rank 2 of 3, pid (\d+)", line):
            victim = int(found[1])
        if "step 40: loss" in line:
            os.kill(victim, signal.SIGKILL)
            break
    rest, _ = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, said + rest
    assert rest.count("of 2, pid") == 2
    check(said + rest, 2)
