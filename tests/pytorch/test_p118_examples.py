"""Examples for data-parallel and pipelined training: the losses of Gloo, and run by a launcher."""

import importlib.util
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from support.torch.ranks import run_ranks
from support.torch.training import assert_all_close

EXAMPLES = Path(__file__).parents[2] / "examples" / "torch"
SECONDS = 120.0


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch's own, of its optimizers
        spec.loader.exec_module(module)
    return module


def assert_same_as_gloo(size: int, body: Any) -> list[Any]:
    found, wanted = run_ranks(size, body), run_ranks(size, body, backend="gloo")
    for mine, theirs in zip(found, wanted, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert_all_close(one, other, rtol=1e-4)
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_p118_loss_curves_of_ddp_are_those_of_gloo(size: int) -> None:
    ddp = example("ddp")
    found = assert_same_as_gloo(
        size,
        lambda rank: [ddp.train(20)[0], ddp.train(5, "allreduce")[0], ddp.train(5, "fp16")[0]],
    )
    assert found[0] == found[1]
    assert found[0][0][-1] < 0.9 * found[0][0][0]


def test_p118_loss_curves_of_join_are_those_of_gloo():
    found = assert_same_as_gloo(3, lambda rank: list(example("uneven").train(3, 2)))
    assert [len(losses) for losses, _ in found] == [6, 10, 14]
    assert found[0][1] == found[1][1] == found[2][1]


def test_p118_loss_curves_of_a_pipeline_are_those_of_gloo():
    pipeline = example("pipeline")
    found = assert_same_as_gloo(
        2, lambda rank: [pipeline.train(4, kind) for kind in pipeline.SCHEDULES]
    )
    assert_all_close(found[1][0], found[1][1])
    assert found[1][0][-1] < found[1][0][0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ddp.py", "--steps", "8", "--hook", "power_sgd"), "512 points are on the right side"),
        (("uneven.py", "--least", "1", "--epochs", "1"), "rank 1: 3 batches"),
        (("pipeline.py", "--steps", "2"), "2 stages, 8 microbatches"),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else "",
)
def test_p118_examples_run_under_the_launcher(arguments: tuple[str, ...], said: str) -> None:
    name, *more = arguments
    run = [sys.executable, "-m", "allhands.cli.main", "run", "-n", "2", str(EXAMPLES / name), *more]
    ended = subprocess.run(
        run, capture_output=True, text=True, timeout=SECONDS, check=False, env=dict(os.environ)
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert said in ended.stdout


def test_p118_the_example_of_calls_shows_what_they_give_and_leaves_what_can_be_compared(
    tmp_path: Path,
) -> None:
    run = [sys.executable, "-m", "allhands.cli.main", "run", "-n", "3", str(EXAMPLES / "calls.py")]
    ended = subprocess.run(
        [*run, "--dump", f"{tmp_path}/rank_"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert [line.removeprefix("[0] ") for line in ended.stdout.splitlines()[:7]] == [
        *(f"name and place: rank {rank} of 3" for rank in range(3)),
        "around the ring: 2.0",
        "shares: [0.0, 1.0, 1.0, 2.0, 2.0, 2.0]",
        "sparse sum: [1.0, 2.0, 3.0], functional sum: [6.0, 6.0]",
        "the profiler saw: allhands:all_gather, allhands:all_reduce, allhands:all_to_all, "
        "allhands:broadcast, allhands:recv, allhands:send",
    ]
    tool = "torch.distributed.flight_recorder.fr_trace"
    compared = subprocess.run(
        [sys.executable, "-m", tool, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert compared.returncode == 0, compared.stderr
    assert len(list(tmp_path.iterdir())) == 3
