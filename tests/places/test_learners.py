"""JAX, LightGBM and XGBoost with the ranks of a world: their examples, and what goes wrong."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.deployments.stage import ROOT

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def needs(name: str) -> pytest.MarkDecorator:
    is_missing = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(is_missing, reason=f"{name} is not installed: make test-places")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs a program, or its text, on ranks of this host."""

    def start(count: int, program: str | Path) -> "subprocess.CompletedProcess[str]":
        path = program if isinstance(program, Path) else tmp_path / "program.py"
        if isinstance(program, str):
            path.write_text(program)
        command = [sys.executable, "-m", "allhands.cli.main", "run", "-n", str(count), str(path)]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XDG_RUNTIME_DIR": str(tmp_path)}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=100, check=False
        )

    return start


@needs("jax")
def test_jax_finds_the_world_and_calls_it_inside_of_jit(run: Run) -> None:
    done = run(2, ROOT / "examples/on_jax.py")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}] process {rank} of 2: [1.0, 2.0, 3.0]" for rank in range(2)
    ]


JAX_CALLS = """
import jax, jax.numpy as jnp, numpy as np
import allhands as ah, allhands.jax as aj

ah.init_process_group()
rank = ah.get_rank()
x = jnp.full((2, 3), float(rank + 1))

def call_all(x):
    gathered = aj.all_gather(x)
    return aj.all_reduce(x), aj.broadcast(x, 1), gathered, aj.reduce_scatter(x), aj.all_to_all(x)

for call in (call_all, jax.jit(call_all)):
    summed, first, gathered, part, swapped = call(x)
    assert all(isinstance(one, jax.Array) for one in (summed, first, gathered, part, swapped))
    assert (summed == 3).all() and (first == 2).all() and (part == 3).all()
    assert gathered.shape == (2, 2, 3) and gathered[:, 0, 0].tolist() == [1, 2]
    assert part.shape == (1, 3) and swapped[:, 0].tolist() == [1, 2]

# Many calls that do not use each other: in the order of the program, or they mismatch.
@jax.jit
def many(x):
    return [aj.all_reduce(x[: i % 2 + 1] * i) for i in range(20)]
for i, one in enumerate(many(x)):
    assert one.shape == (i % 2 + 1, 3) and (one == 3 * i).all()

try:
    aj.reduce_scatter(jnp.ones((3, 1)))
except ValueError as error:
    print("refused", error)
try:
    jax.block_until_ready(jax.jit(aj.all_reduce)(jnp.ones(1 + rank)))
except Exception as error:
    print("mismatch", "all_reduce(float32[2], SUM)" in str(error))
try:
    aj.barrier("first" if rank == 0 else "second", timeout=5)
except ah.CollectiveMismatch as error:
    print("named", "first" in str(error) and "second" in str(error))
"""


@needs("jax")
def test_calls_of_jax_keep_their_order_inside_of_jit_and_mismatches_are_named(run: Run) -> None:
    done = run(2, JAX_CALLS)
    assert done.returncode == 0, done.stderr
    lines = sorted(re.sub(r"^\[.\] ", "", line) for line in done.stdout.splitlines())
    assert lines == [
        *["mismatch True"] * 2,
        *["named True"] * 2,
        *["refused 3 rows cannot be shared equally by 2 processes"] * 2,
    ], done.stderr


@needs("lightgbm")
def test_lightgbm_has_the_same_trees_on_all_ranks(run: Run) -> None:
    done = run(3, ROOT / "examples/on_lightgbm.py")
    assert done.returncode == 0, done.stderr
    check_trees(done.stdout, 3)


LOSE_ONE = """
import os, signal
import lightgbm, numpy as np
import allhands as ah, allhands.lightgbm

ah.init_process_group(timeout=20)
rank = ah.get_rank()

def die(env):
    if rank == 1 and env.iteration == 2:
        os.kill(os.getpid(), signal.SIGKILL)

x = np.random.default_rng(rank).normal(size=(500, 4))
try:
    with allhands.lightgbm.network() as network:
        parameters = {"tree_learner": "data", "verbose": -1, "num_threads": 1, **network}
        lightgbm.train(parameters, lightgbm.Dataset(x, x[:, 0]), 5, callbacks=[die])
    print("trained")
except ah.PeerFailed as error:
    print("lost", [*error.failed_ranks])
"""


@needs("lightgbm")
def test_the_loss_of_a_rank_ends_the_training_of_lightgbm_with_its_name(run: Run) -> None:
    done = run(2, LOSE_ONE)
    assert [line for line in done.stdout.splitlines() if "LightGBM" not in line] == [
        "[0] lost [1]"
    ], done.stderr


@needs("xgboost")
def test_xgboost_has_the_ranks_of_the_world(run: Run) -> None:
    done = run(3, ROOT / "examples/on_xgboost.py")
    assert done.returncode == 0, done.stderr
    check_trees(done.stdout, 3)


def check_trees(printed: str, size: int) -> None:
    found = dict(re.findall(rf"rank (\d) of {size}: (trees .*)", printed))
    assert len(found) == size, printed
    assert len(set(found.values())) == 1, printed
    assert float(found["0"].split()[-1]) > 0.95
