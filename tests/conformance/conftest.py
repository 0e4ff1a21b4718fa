"""A real coordinator for stores at a coordinator."""

import itertools
from collections.abc import Iterator

import pytest

from allhands.coordinator.client import Control
from allhands.testing.daemon import DaemonProcess, run_daemon
from support.process_state import check_process_state

_jobs = itertools.count(1)


@pytest.fixture(autouse=True)
def same_process_state() -> Iterator[None]:
    """Fail a test after which the process differs from before."""
    with check_process_state():
        yield


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with run_daemon(tmp_path_factory.mktemp("runtime")) as running:
        yield running


@pytest.fixture(params=["line", "grpc"])
def control(daemon: DaemonProcess, request: pytest.FixtureRequest) -> Iterator[Control]:
    """A client of the daemon, with a job per test, over either port."""
    job = f"conformance-{next(_jobs)}"
    is_line = request.param == "line"
    with Control(daemon.endpoint, job=job, timeout=10, use_lines=is_line) as made:
        if is_line:
            made._stub = None  # who falls back to gRPC falls
        yield made
