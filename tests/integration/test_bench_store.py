"""The store's benchmark: real servers and clients, short loads."""

import json
import subprocess
import sys

import pytest

from support.ranks.processes import Cluster

_BENCH = [sys.executable, "-m", "allhands.bench.store"]


def bench(cluster: Cluster, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*_BENCH, *arguments],
        env=cluster.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_every_load_gets_a_row_for_each_way(cluster: Cluster) -> None:
    short = ("--vs", "", "--clients", "2", "--rounds", "1", "--seconds", "0.05")
    done = bench(cluster, *short, "-o", "json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    cells = {(row["clients"], row["outstanding"], row["operation"]) for row in rows}
    alone = ("set", "get", "add", "txn", "event", "lock", "contend", "barrier")
    assert cells == {
        *((clients, 1, op) for clients in (1, 2, 16) for op in alone),
        *((2, 64, op) for op in ("set", "get", "add", "txn")),
    }
    contenders = {row["contender"] for row in rows}
    assert contenders == {"allhands", "allhands by gRPC", "allhands, durable"}
    assert all(row["per_second"] > 0 for row in rows)
    assert all(("latency" in row) == (row["outstanding"] == 1) for row in rows)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--vs", "redis"], "no contender 'redis'"),
        (["--rounds", "0"], "at least"),
        (["-o", "xml"], "invalid choice"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_measured(
    cluster: Cluster, arguments: list[str], complaint: str
) -> None:
    done = bench(cluster, *arguments)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert done.stdout == ""
