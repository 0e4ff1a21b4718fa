"""Progress of long commands: on terminals, and nowhere else a bar."""

import subprocess
import sys

from support.ranks.processes import Cluster
from support.terminal import run_on_terminal

BENCH = ["bench", "--ops", "all_reduce,barrier", "--sizes", "8B", "--ranks", "2", "--budget", "0"]


def test_a_benchmark_counts_its_cases_on_a_terminal(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "allhands.cli.main", *BENCH]
    done, shown = run_on_terminal(command, cluster.environment)
    assert done.returncode == 0, shown
    assert "microseconds" in done.stdout
    assert "0/2" in shown
    assert "1/2" in shown
    assert "measuring all_reduce, 2 ranks" in shown


def test_without_a_terminal_a_benchmark_writes_a_line_for_each_case(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "allhands.cli.main", *BENCH]
    done = subprocess.run(
        command, env=cluster.environment, capture_output=True, text=True, timeout=100, check=True
    )
    said = [line for line in done.stderr.splitlines() if line.startswith("measuring")]
    assert [line.split()[1].rstrip(",") for line in said] == ["all_reduce", "barrier"]
    assert "\x1b" not in done.stderr


def test_an_examination_shows_its_checks_on_a_terminal_only(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "allhands.cli.main", "doctor"]
    done, shown = run_on_terminal(command, cluster.environment)
    assert "examined" in shown, done.stdout
    piped = subprocess.run(
        command, env=cluster.environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert piped.stderr == ""
