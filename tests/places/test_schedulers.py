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


@needs_ray
@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: make test-torch"
)
def test_workers_of_ray_train_average_gradients_over_allhands(run: Run) -> None:
    done = run(str(ROOT / "examples/on_ray_train.py"), "2")
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        said = f"rank {rank} of 2 over allhands: weights equal: True"
        assert said in done.stdout + done.stderr, done.stderr


LOSE_ONE = """
import sys
sys.path.insert(0, {examples!r})
import on_ray, ray
there = {{"env_vars": {{"PYTHONPATH": {examples!r}}}}}
ray.init(num_cpus=3, log_to_driver=False, runtime_env=there)
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


@needs_ray
def test_rays_collective_calls_go_over_a_world(run: Run, daemon: DaemonProcess) -> None:
    done = run(str(ROOT / "examples/on_ray_collective.py"), "2")
    assert done.stdout == "2 actors have the averages [0.5, 0.5]\n", done.stderr
    expect_end(daemon, "ray-train", 2)


ALL_CALLS = """
import numpy as np, ray, torch
from ray.util import collective
import allhands.ray

allhands.ray.register()

@ray.remote(num_cpus=1)
class Worker:
    def __init__(self, rank):
        allhands.ray.register()
        allhands.ray.register()  # again it does nothing
        self.rank = rank

    def call_all(self):
        name, rank = "calls", self.rank
        x = torch.full((2,), float(rank + 1))
        collective.allreduce(x, name, collective.types.ReduceOp.MAX)
        assert x.tolist() == [2.0, 2.0]
        parts = [np.empty(2) for _ in range(2)]
        collective.allgather(parts, np.full(2, float(rank)), name)
        assert [one[0] for one in parts] == [0.0, 1.0]
        out = np.empty(2)
        collective.reducescatter(out, [np.full(2, 1.0), np.full(2, 10.0)], name)
        assert out[0] == (2.0, 20.0)[rank]
        y = np.full(3, float(rank))
        collective.broadcast(y, 1, name)
        collective.reduce(y, 0, name)
        assert y[0] == (2.0, 1.0)[rank]
        collective.send(y, 1, name) if rank == 0 else collective.recv(y, 0, name)
        assert y[0] == 2.0
        collective.barrier(name)
        return collective.get_rank(name)

    def wait(self):
        try:
            collective.barrier("calls")
        except RuntimeError as error:
            return type(error).__name__, [*error.failed_ranks]

ray.init(num_cpus=2, log_to_driver=False, namespace="calls")
actors = [Worker.remote(rank) for rank in range(2)]
collective.create_collective_group(actors, 2, [0, 1], backend="allhands", group_name="calls")
print(ray.get([one.call_all.remote() for one in actors]))
ray.kill(actors[1])
print(ray.get(actors[0].wait.remote()))
ray.shutdown()
"""


@needs_ray
def test_all_of_rays_collective_calls_work_and_a_killed_actor_is_named(run: Run) -> None:
    done = run("-c", ALL_CALLS)
    assert done.stdout.splitlines() == ["[0, 1]", "('PeerFailed', [1])"], done.stderr


FAILING_ON_DASK = """
import allhands as ah, allhands.dask
from dask.distributed import Client, LocalCluster

def meet():
    if ah.get_rank() == 1:
        raise ValueError("no data")
    return ah.get_world_size()

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1) as cluster, Client(cluster) as client:
        with allhands.dask.open_world(client) as world:
            try:
                world.run(meet)
            except ValueError as error:
                print("raised", error)
            try:
                world.map(meet, [1])
            except ValueError as error:
                print("raised", error)
            print(world.run(ah.get_world_size))
        client.run(lambda: __import__("os").environ.pop("ALLHANDS_URL"))
        try:
            with allhands.dask.open_world(client):
                pass
        except ValueError as error:
            print("refused", "have no ALLHANDS_URL: start `allhands serve`" in str(error))
"""


@needs_dask
def test_a_function_that_fails_on_a_worker_of_dask_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING_ON_DASK)
    done = run("failing.py")
    assert done.stdout.splitlines() == [
        "raised no data",
        "raised 1 items for 2 ranks",
        "[2, 2]",
        "refused True",
    ], done.stderr


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
