"""Fixtures for tests of whole jobs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Cluster, Job, Process


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Give a cluster; what it has started is gone after the test."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    made = Cluster(runtime)
    yield made
    made.close()


@pytest.fixture
def job(cluster: Cluster) -> Job:
    """Give a function that runs a script in a world of `size` ranks at a daemon."""

    def start(size: int, script: str, **environment: str) -> list[Process]:
        return cluster.world(size, script, ALLHANDS_URL=cluster.daemon() + "/job", **environment)

    return start
