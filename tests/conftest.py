"""Fixtures for tests of whole jobs."""

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allhands.runtime.loop_thread import is_closed_loop_wakeup
from support.parity import rows
from support.ranks.forking import ForkServer
from support.ranks.processes import Cluster, Job, Process, Program
from support.seeds.listing import ABSENT


def pytest_configure() -> None:
    """Give the processes of the tests the signal handlers of a terminal.

    Processes started by `nohup`, or in the background of a shell, ignore these signals, and pass
    that on to their children.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    logging.getLogger("asyncio").addFilter(_is_no_wake_of_a_closed_loop)


def _is_no_wake_of_a_closed_loop(record: logging.LogRecord) -> bool:
    """Return whether a log record is from the current test, not from a closed loop.

    Left in, such records would reach later tests of the log.
    """
    error = record.exc_info[1] if record.exc_info else None
    return not is_closed_loop_wakeup(record.getMessage(), error)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the missing tools; write the parity table if the environment says so."""
    skipped = terminalreporter.stats.get("skipped", ())
    if left_out := sum(ABSENT in str(getattr(one, "longrepr", "")) for one in skipped):
        terminalreporter.write_line(f"{ABSENT} ({left_out})")
    if "ALLHANDS_WRITE_TABLES" not in os.environ:
        return
    outcomes: dict[str, str] = {}
    for outcome in ("passed", "skipped", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, ()):
            if getattr(report, "when", None) in ("call", "setup"):
                outcomes[report.nodeid.partition("[")[0].removeprefix("tests/")] = outcome
    proofs = [name for names in rows.proofs().values() for name in names]
    if not all(name in outcomes for name in proofs):
        return  # these were other tests
    rows.TABLE.parent.mkdir(exist_ok=True)
    rows.TABLE.write_text(rows.table(outcomes))


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Yield the fork server of all tests' processes."""
    made = ForkServer()
    yield made
    made.close()


@pytest.fixture
def cluster(tmp_path: Path, fork_server: ForkServer) -> Iterator[Cluster]:
    """Yield a cluster; end the processes after the test."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    made = Cluster(runtime, fork_server)
    yield made
    made.close()


@pytest.fixture
def backend() -> str:
    """Return the backend of a test parametrized by backends."""
    return "auto"


@pytest.fixture
def is_encrypted() -> bool:
    """Return whether the links of a test's jobs are encrypted, which it may be parametrized by."""
    return False


@pytest.fixture
def job(cluster: Cluster, backend: str, is_encrypted: bool) -> Job:
    """Return a function to run a program in a world of `size` ranks at a daemon."""

    def start(size: int, program: Program, *arguments: Any, **environment: str) -> list[Process]:
        url = cluster.daemon(encrypts=is_encrypted) + "/job"
        given = {"ALLHANDS_URL": url, "ALLHANDS_BACKEND": backend, **environment}
        return cluster.world(size, program, *arguments, **given)

    return start
