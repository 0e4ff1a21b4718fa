"""Fixtures for tests of whole jobs."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Cluster, Job, Nursery, Process


def pytest_configure() -> None:
    """Let the processes of the tests have signals as a terminal gives them.

    What a shell starts in the background ignores these two, and so would all that it starts.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Give the process that forks those of all tests."""
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def cluster(tmp_path: Path, nursery: Nursery) -> Iterator[Cluster]:
    """Give a cluster; what it has started is gone after the test."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    made = Cluster(runtime, nursery)
    yield made
    made.close()


@pytest.fixture
def backend() -> str:
    """Name what carries the calls; tests of several are parametrized by it."""
    return "auto"


@pytest.fixture
def job(cluster: Cluster, backend: str) -> Job:
    """Give a function that runs a script in a world of `size` ranks at a daemon."""

    def start(size: int, script: str, **environment: str) -> list[Process]:
        url = cluster.daemon() + "/job"
        given = {"ALLHANDS_URL": url, "ALLHANDS_BACKEND": backend, **environment}
        return cluster.world(size, script, **given)

    return start
