"""The backend, from the name to numbers."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from allhands.testing.poll import poll_until
from programs import torch_first_group
from support.ranks.launchers import as_script
from support.torch.ranks import on_ranks, run_ranks

# Programs as text: what a new interpreter imports first is what is tested.


def run_program(program: Callable[[], None]) -> subprocess.CompletedProcess[str]:
    """Call a function of a script in a new interpreter."""
    return subprocess.run([sys.executable, *as_script(program)], capture_output=True, text=True)


@on_ranks(2)
def test_a_program_that_names_the_backend_gets_its_sums(rank: int) -> None:
    x = torch.full((4,), rank + 1.0)
    dist.all_reduce(x)
    assert x.tolist() == [3.0] * 4
    assert dist.get_backend() == "allhands"


def test_the_backend_can_be_named_for_the_processor_alone() -> None:
    def body(rank: int) -> list[float]:
        x = torch.full((2,), rank + 1.0)
        dist.all_reduce(x)
        return list(x.tolist())

    assert run_ranks(3, body, backend="cpu:allhands") == [[6.0, 6.0]] * 3


@on_ranks(2)
def test_a_copied_tensor_has_its_result_when_its_work_is_said_to_be_completed(rank: int) -> None:
    x = torch.arange(6.0).reshape(2, 3).t()
    work = dist.all_reduce(x, async_op=True)
    poll_until(work.is_completed)
    assert x.tolist() == [[0.0, 6.0], [2.0, 8.0], [4.0, 10.0]]


@on_ranks(2)
def test_a_copied_tensor_has_its_result_though_nobody_keeps_its_work(rank: int) -> None:
    x = torch.arange(6.0).reshape(2, 3).t()
    dist.all_reduce(x, async_op=True)
    poll_until(lambda: x[2, 1] == 10.0)


@pytest.mark.parametrize("autoload", ["0", "1"])
@pytest.mark.parametrize(
    "first",
    [
        "import allhands.torch",
        "from allhands.torch import Store",
        "from allhands.torch import register; register()",
        "import allhands.torch.process_group",
        "import torch; import allhands.torch",
    ],
)
def test_the_package_may_be_imported_before_pytorch(first: str, autoload: str) -> None:
    program = (
        f"{first}\n"
        "import torch\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('allhands', store=dist.HashStore(), rank=0, world_size=1)\n"
        "dist.all_reduce(x := torch.ones(2))\n"
        "assert x.tolist() == [1, 1] and dist.get_backend() == 'allhands'\n"
        "dist.destroy_process_group()\n"
    )
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert told.returncode == 0, told.stderr


def test_a_first_group_imports_nothing_that_few_programs_use() -> None:
    told = run_program(torch_first_group.list_imports)
    assert told.returncode == 0, told.stderr
    few = {
        "decimal",
        "encodings.idna",
        "ml_dtypes",
        "numpy.ma",
        "sqlite3",
        "grpc_reflection.v1alpha",
    }
    assert few & {*told.stdout.split()} == set()


@pytest.mark.parametrize(
    "where",
    ["store=dist.HashStore(), rank=0, world_size=1", "init_method='ah://127.0.0.1:1/job'"],
)
def test_without_ml_dtypes_the_error_says_what_to_install(where: str) -> None:
    program = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "import torch.distributed as dist\n"
        f"dist.init_process_group('allhands', {where})\n"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert told.returncode == 1
    assert told.stderr.splitlines()[-1] == (
        "ImportError: the backend 'allhands' of torch.distributed needs ml_dtypes, which is not "
        "installed: pip install 'allhands[torch]'"
    )


def test_the_first_group_loads_no_more_than_it_needs_and_collects_no_garbage_meanwhile() -> None:
    told = run_program(torch_first_group.count_collections)
    assert told.stdout.splitlines() == ["True True", "[]"], told.stderr
