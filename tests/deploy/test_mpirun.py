"""Ranks of mpirun, Open MPI's and MPICH's, that find their world by themselves."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.deployments.stage import ROOT

OPEN_MPI = ("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--tag-output", "-n")
MPICH = ("mpiexec.hydra", "-n")
_OUTER = ("ALLHANDS_", "MASTER_", "OMPI_", "PMI", "SLURM_", "MPI_LOCAL")


def find_launcher(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command with a program that is here, or skip the test."""
    program, *options = command
    if (path := shutil.which(program)) is None:
        pytest.skip(f"{program} is not installed")
    return path, *options


@pytest.mark.parametrize("command", [OPEN_MPI, MPICH], ids=["Open MPI", "MPICH"])
def test_ranks_of_mpirun_are_one_world(command: tuple[str, ...], tmp_path: Path) -> None:
    kept = {name: text for name, text in os.environ.items() if not name.startswith(_OUTER)}
    done = subprocess.run(
        [*find_launcher(command), "3", sys.executable, str(ROOT / "examples/hello.py")],
        env={**kept, "XDG_RUNTIME_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        assert f"hello from rank {rank} of 3: all ranks add up to 3" in done.stdout, done
    assert "world size 3, 3 joined" in done.stdout
