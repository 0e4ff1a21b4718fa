"""Environment variables read by a process, and those left unchanged."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import allhands as ah
from programs import launched_ranks, worlds
from support.ranks.addresses import free_port
from support.ranks.launchers import as_script
from support.ranks.processes import Cluster


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Yield an environment without a launcher's variables."""
    for name in list(os.environ):
        if name.startswith(("ALLHANDS_", "MASTER_", "OMPI_", "PMI_", "SLURM_", "MPI_LOCAL")):
            monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_p001_env_init_leaves_root_logging_handlers_untouched(alone: pytest.MonkeyPatch):
    values = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in values.items():
        alone.setenv(name, str(value))
    root = logging.getLogger()
    before = (list(root.handlers), list(root.filters), root.level, root.disabled)

    ah.init_process_group("env://")
    try:
        ah.barrier()
        assert (list(root.handlers), list(root.filters), root.level, root.disabled) == before
    finally:
        ah.destroy_process_group()
    assert (list(root.handlers), list(root.filters), root.level, root.disabled) == before
    assert not logging.getLogger("allhands").handlers


def test_p101_local_rank_is_what_the_launcher_says(alone: pytest.MonkeyPatch):
    alone.setenv("LOCAL_RANK", "5")
    assert ah.get_node_local_rank() == 5
    assert ah.get_node_local_rank(fallback_rank=7) == 5


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"])
def test_p101_local_rank_of_mpirun_and_srun(alone: pytest.MonkeyPatch, name: str):
    alone.setenv(name, "3")
    assert ah.get_node_local_rank() == 3


def test_p101_without_a_launcher_it_is_the_fallback_or_an_error(alone: pytest.MonkeyPatch):
    assert ah.get_node_local_rank(fallback_rank=0) == 0
    with pytest.raises(RuntimeError, match=r"LOCAL_RANK is not in the environment.*fallback_rank"):
        ah.get_node_local_rank()
    alone.setenv("LOCAL_RANK", "first")
    with pytest.raises(ValueError, match="LOCAL_RANK must be a whole number, not 'first'"):
        ah.get_node_local_rank(0)


def test_p116_world_again_after_destroy_in_one_process(cluster: Cluster):
    ranks = cluster.world(
        2,
        worlds.make_a_world_three_times,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(free_port()),
    )
    for rank in ranks:
        assert [rank.expect("sum")["of"] for _ in range(3)] == [3.0] * 3
        assert rank.ended() == 0, rank.errors


def test_p119_a_program_takes_its_place_from_the_launcher_s_variables(cluster: Cluster):
    port = str(free_port())
    ranks = [
        cluster.start(
            worlds.tell_place,
            RANK=str(rank),
            WORLD_SIZE="2",
            LOCAL_RANK=str(rank),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
        )
        for rank in range(2)
    ]
    told = [rank.expect("place") for rank in ranks]
    assert [(one["rank"], one["size"], one["sum"]) for one in told] == [(0, 2, 11), (1, 2, 11)]
    assert [rank.ended() for rank in ranks] == [0, 0]


def test_p119_allhands_run_sets_them(alone: pytest.MonkeyPatch, tmp_path: Path):
    command = [sys.executable, "-m", "allhands.cli.main", "run", "-n", "2"]
    command += as_script(launched_ranks.show_place)
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    said = sorted(line.rpartition("] ")[2] for line in ran.stdout.splitlines())
    assert said == ["0 2 0 2 127.0.0.1 0 2 0", "1 2 1 2 127.0.0.1 1 2 1"]


def test_p119_world_of_one_without_any_of_them(alone: pytest.MonkeyPatch):
    ah.init_process_group()
    try:
        x = np.ones(3)
        ah.all_reduce(x)
        assert (ah.get_rank(), ah.get_world_size(), x.sum()) == (0, 1, 3)
    finally:
        ah.destroy_process_group()
