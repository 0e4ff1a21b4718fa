"""Programs that ask for "gloo" run over groups of this package, and are told gloo."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import allhands.torch
from allhands.torch.gloo_name import translate
from allhands.torch.process_group import ProcessGroup
from support.torch.ranks import run_ranks


def run_as_gloo(size: int, body: Any, backend: str | None = "gloo") -> list[Any]:
    """Run `body` on ranks whose default group was made with `backend`, after `answer_to`."""

    with tempfile.TemporaryDirectory() as folder:

        def begin(rank: int) -> Any:
            allhands.torch.answer_to("gloo")
            allhands.torch.answer_to("gloo")
            meeting = f"file://{folder}/store"
            dist.init_process_group(backend, meeting, rank=rank, world_size=size)
            try:
                return body(rank)
            finally:
                dist.destroy_process_group()

        return run_ranks(size, begin, init=False)


@pytest.mark.parametrize("backend", ["gloo", "GLOO", "cpu:gloo", None])
def test_the_default_group_is_ours_and_is_told_as_asked_for(backend: str | None) -> None:
    def body(rank: int) -> tuple[bool, str, float]:
        x = torch.full((3,), rank + 1.0)
        dist.all_reduce(x)
        return isinstance(dist.group.WORLD, ProcessGroup), dist.get_backend(), x.sum().item()

    told = {None: "undefined", "GLOO": "gloo"}.get(backend, backend)
    assert run_as_gloo(2, body, backend) == [(True, told, 9.0)] * 2


def test_groups_beside_a_default_group_are_made_as_inference_servers_make_them() -> None:
    """Of each set of ranks a group for the device, and one of gloo for objects and barriers."""

    def body(rank: int) -> list[Any]:
        mine: list[Any] = []
        for ranks in ([0, 1], [2, 3], [0, 2], [1, 3]):
            device = dist.new_group(ranks, backend="gloo")
            on_host = dist.new_group(ranks, backend="gloo", timeout=None)
            if rank not in ranks:
                continue
            assert isinstance(device, ProcessGroup)
            assert isinstance(on_host, ProcessGroup)
            assert dist.get_backend(on_host) == "gloo"
            told: list[Any] = [{"from": rank}]
            dist.broadcast_object_list(told, src=ranks[0], group=on_host)
            dist.barrier(group=on_host)
            x = torch.tensor([rank])
            dist.all_reduce(x, group=device)
            mine.append((told[0]["from"], x.item()))
        dist.monitored_barrier()
        return mine

    assert run_as_gloo(4, body) == [
        [(0, 1), (0, 2)],
        [(0, 1), (1, 4)],
        [(2, 5), (0, 2)],
        [(2, 5), (1, 4)],
    ]


def test_meshes_and_parts_of_groups_are_ours_too() -> None:
    def body(rank: int) -> tuple[bool, str, str]:
        mesh = dist.init_device_mesh("cpu", (2, 1), mesh_dim_names=("rows", "columns"))
        part = dist.split_group(dist.group.WORLD, [[0], [1]], backend="gloo")
        assert part is not None
        rows = mesh.get_group("rows")
        return isinstance(rows, ProcessGroup), dist.get_backend(rows), dist.get_backend(part)

    assert [ours for ours, _, _ in run_as_gloo(2, body)] == [True, True]


def test_a_variable_does_it_for_a_program_that_knows_nothing_of_us(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "print(type(dist.group.WORLD).__module__, dist.get_backend())\n"
        "dist.destroy_process_group()\n"
    )
    command = [sys.executable, "-m", "allhands.cli.main", "run", "-n", "2"]
    done = subprocess.run(
        [*command, "--env", "ALLHANDS_TORCH_AS=gloo", str(program)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    said = sorted(done.stdout.splitlines())
    assert said == [f"[{rank}] allhands.torch.process_group gloo" for rank in range(2)]


def test_another_name_is_refused() -> None:
    with pytest.raises(ValueError, match="'gloo' alone, not to 'nccl'"):
        allhands.torch.answer_to("nccl")


def test_a_default_group_of_gloo_itself_is_too_early() -> None:
    def body(_rank: int) -> str:
        with pytest.raises(RuntimeError) as raised:
            allhands.torch.answer_to("gloo")
        return str(raised.value)

    for said in run_ranks(2, body, backend="gloo"):
        assert "before init_process_group" in said


def test_gloo_for_some_devices_only_is_refused_with_the_way_to_have_both() -> None:
    assert translate("nccl") == "nccl"
    assert translate("cpu:gloo,cuda:gloo") == "cpu:allhands,cuda:allhands"
    with pytest.raises(ValueError, match="one group with 'gloo' and another with 'nccl'"):
        translate("cpu:gloo,cuda:nccl")
