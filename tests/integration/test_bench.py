"""`allhands bench`: real ranks, small arrays."""

import json
import subprocess
import sys

import pytest

from harness import Cluster

BENCH = [sys.executable, "-m", "allhands.cli.main", "bench"]


def bench(cluster: Cluster, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*BENCH, *arguments],
        env=cluster.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_each_size_and_number_of_ranks_gets_a_row_of_checked_times(cluster: Cluster) -> None:
    done = bench(cluster, "--ranks", "1,2", "--sizes", "8B,4KiB", "-o", "json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    cells = [(row["ranks"], row["bytes"], row["peer"]) for row in said["rows"]]
    assert cells == [(n, size, "allhands") for n in (1, 2) for size in (8, 4096)]
    assert all(0 < row["low"] <= row["median"] <= row["high"] for row in said["rows"])
    assert said["machine"]["memory_copy_gbs"] > 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--vs", "nccl"], "no peer 'nccl'"),
        (["--sizes", "8Bits"], "'8Bits' is not a size"),
        (["--ranks", "two"], "'two' is not a number of ranks"),
        (["-o", "xml"], "table or json"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_measured(
    cluster: Cluster, arguments: list[str], complaint: str
) -> None:
    done = bench(cluster, *arguments)
    assert done.returncode == 2
    assert complaint in done.stderr


def test_a_wrong_sum_is_an_error_and_no_figure(cluster: Cluster) -> None:
    process = cluster.start(
        """
        from allhands.bench.rank import measure

        class Liar:
            name = "liar"

            def all_reduce(self, x):
                x[-1] += 1

        ah.init_process_group()
        tell("measured", **failure(lambda: measure([Liar()], 8)))
        """
    )
    told = process.expect("measured")
    assert told["error"] == "ArithmeticError"
    assert "liar summed 8 bytes wrongly" in told["text"]
