"""Examples whose ranks are actors of Ray or workers of Dask, at a real coordinator."""

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from allhands.testing.daemon import DaemonProcess, run_daemon
from support.deployments.stage import ROOT

Run = Callable[..., "subprocess.CompletedProcess[str]"]
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: make test-places"
)
needs_dask = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None,
    reason="dask is not installed: make test-places",
)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with run_daemon(tmp_path_factory.mktemp("runtime")) as running:
        yield running


@pytest.fixture
def run(daemon: DaemonProcess, tmp_path: Path) -> Iterator[Run]:
    """Return a function that runs a program with the coordinator in its environment.

    What it leaves behind is killed.
    """
    started: list[subprocess.Popen[str]] = []

    def start(*command: str) -> "subprocess.CompletedProcess[str]":
        environment = {
            **daemon.environ,
            "ALLHANDS_URL": f"ah://127.0.0.1:{daemon.notice.port}",
            "ALLHANDS_TOKEN": daemon.notice.token,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        process = subprocess.Popen(
            [sys.executable, *command],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        printed, errors = process.communicate(timeout=100)
        return subprocess.CompletedProcess(command, process.returncode, printed, errors)

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@needs_ray
def test_actors_of_ray_are_the_ranks_of_a_world(run: Run, daemon: DaemonProcess) -> None:
    done = run(str(ROOT / "examples/on_ray.py"), "2")
    assert done.returncode == 0, done.stderr
    found = re.search(r"2 ranks of job (\S+) have the averages \[0.5, 0.5\]", done.stdout)
    assert found, done.stdout
    expect_end(daemon, found[1], 2)


LOSE_ONE = """
import sys
sys.path.insert(0, {examples!r})
import on_ray, ray
ray.init(num_cpus=3, log_to_driver=False)
ranks = [on_ray.Actor.remote("lose-one", rank, 3) for rank in range(3)]
ray.get([one.average.remote(4) for one in ranks])
ray.kill(ranks[1])
for one in (ranks[0], ranks[2]):
    try:
        ray.get(one.average.remote(4))
    except ray.exceptions.RayTaskError as error:
        print("lost", error.cause.failed_ranks, flush=True)
ray.shutdown()
"""


@needs_ray
def test_an_actor_that_ray_kills_is_named_to_the_others(run: Run) -> None:
    done = run("-c", LOSE_ONE.format(examples=str(ROOT / "examples")))
    assert done.stdout.splitlines() == ["lost (1,)"] * 2, done.stderr


@needs_dask
def test_workers_of_dask_are_the_ranks_of_a_world(run: Run, daemon: DaemonProcess) -> None:
    done = run(str(ROOT / "examples/on_dask.py"), "3")
    assert done.returncode == 0, done.stderr
    found = re.search(r"3 ranks of job (\S+): 9 rows with the means \[0. 0.\]", done.stdout)
    assert found, done.stdout
    expect_end(daemon, found[1], 3)


def expect_end(daemon: DaemonProcess, job: str, size: int) -> None:
    """Check that the job had this size, and that all ranks have left it in order."""
    events = daemon.run_command("events", job).stdout
    assert events.count(" joined ") == size, events
    assert " lost " not in events, events
