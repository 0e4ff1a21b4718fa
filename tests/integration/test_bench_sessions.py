"""The benchmark of sessions: a real coordinator, small worlds."""

import json
import subprocess
import sys

import pytest

from support.ranks.processes import Cluster

_BENCH = [sys.executable, "-m", "allhands.bench.sessions"]


def bench(cluster: Cluster, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*_BENCH, *arguments],
        env=cluster.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("durable", [False, True])
def test_every_operation_of_a_world_gets_a_row(cluster: Cluster, durable: bool) -> None:
    arguments = ["--sizes", "4,40", "--rounds", "1", "--rest", "0.2", "-o", "json"]
    done = bench(cluster, *arguments, *(["--durable"] if durable else []))
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(row["size"], row["durable"]) for row in rows] == [(4, durable)] * 8 + [
        (40, durable)
    ] * 8
    assert len({row["operation"] for row in rows}) == 8
    assert all(row["memory"] > 1 << 20 for row in rows)
    assert all(0 < row["low"] <= row["seconds"] <= row["high"] for row in rows)


def test_a_world_that_is_none_is_refused(cluster: Cluster) -> None:
    done = bench(cluster, "--sizes", "1")
    assert done.returncode == 2
    assert "sizes from 2 on" in done.stderr
