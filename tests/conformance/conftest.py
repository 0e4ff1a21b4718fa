"""A real coordinator for the stores that need one."""

import itertools
from collections.abc import Iterator

import pytest

from allhands.control import Control
from allhands.testing.daemon import Daemon, running_daemon

_jobs = itertools.count(1)


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("runtime")) as running:
        yield running


@pytest.fixture
def control(daemon: Daemon) -> Iterator[Control]:
    """A client of the daemon, for a job of its own."""
    with Control(daemon.endpoint, job=f"conformance-{next(_jobs)}", timeout=10) as made:
        yield made
