"""examples/slurm: the batch script on two hosts, with a stand-in for srun."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from allhands.bench.launchers import BenchHost
from support.deployments import srun
from support.deployments.stage import ROOT
from support.tls_contexts import make_credentials

SCRIPT = ROOT / "examples/slurm/hello.sbatch"
JOB = "4711"
Submit = Callable[..., subprocess.CompletedProcess[str]]


def read_directives() -> dict[str, str]:
    """Return the options of the lines for sbatch."""
    return dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", SCRIPT.read_text(), re.MULTILINE))


@pytest.fixture
def submit(tmp_path: Path, hosts: tuple[BenchHost, BenchHost]) -> Submit:
    """Return a function that runs the script on the first of two nodes, as a job of Slurm."""
    srun.install(tmp_path / "bin")
    for name, module in (("python", ""), ("allhands", " -m allhands.cli.main")):
        command = tmp_path / "bin" / name
        command.write_text(f'#!/bin/sh\nexec {sys.executable}{module} "$@"\n')
        command.chmod(0o755)
    directives = read_directives()
    kept = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    environment = {
        **kept,
        "PATH": f"{tmp_path / 'bin'}:{kept['PATH']}",
        "XDG_RUNTIME_DIR": str(tmp_path),
        "OMP_NUM_THREADS": "1",
        "SLURM_JOB_ID": JOB,
        "SLURM_JOB_NAME": directives["job-name"],
        "SLURM_JOB_NODELIST": "10.77.0.[1-2]",
        "SLURM_JOB_NUM_NODES": directives["nodes"],
        "SLURM_NNODES": directives["nodes"],
        "SLURM_NTASKS_PER_NODE": directives["ntasks-per-node"],
        srun.VARIABLE: json.dumps({one.address: one.command_prefix for one in hosts}),
    }

    def run(*arguments: str, script: Path = SCRIPT) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*srun.enter(hosts[0].command_prefix, tmp_path), "bash", str(script), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


LOOK_AT_CREDENTIALS = """
import os, pathlib, stat, sys
import hello
folder = pathlib.Path(os.environ["ALLHANDS_TLS_DIR"])
token = (folder / "token").read_text()
paths = (folder.parents[1], folder / "token", folder / "tls.key")
modes = [oct(stat.S_IMODE(one.stat().st_mode)) for one in paths]
shown = token in pathlib.Path("/proc/self/cmdline").read_text()
print("modes", *modes, "in the command line", shown, flush=True)
hello.main()
"""


def test_the_step_is_a_world_over_both_nodes_and_leaves_no_credentials(
    submit: Submit, tmp_path: Path
) -> None:
    (tmp_path / "hello.py").symlink_to(ROOT / "examples/hello.py")
    program = tmp_path / "look.py"
    program.write_text(LOOK_AT_CREDENTIALS)
    done = submit(str(program))
    log = (tmp_path / f"allhands-{JOB}.log").read_text()
    assert done.returncode == 0, done.stderr + log
    for rank in range(4):
        assert f"hello from rank {rank} of 4: all ranks add up to 6" in done.stdout
    assert f"job hello-{JOB}: running, epoch 1, world size 4" in done.stdout
    hosts = re.findall(r"^ *\d+ +(\S+) ", done.stdout, re.MULTILINE)
    assert sorted(hosts) == ["allhands-a"] * 2 + ["allhands-b"] * 2
    assert done.stdout.count("modes 0o700 0o600 0o600 in the command line False") == 4
    assert "INSECURE" not in log
    assert list_leftovers(tmp_path) == []


def list_leftovers(folder: Path) -> list[Path]:
    """Return the folders of credentials."""
    return list(folder.glob(".allhands*"))


def test_the_status_of_a_rank_that_fails_is_that_of_the_job(submit: Submit, tmp_path: Path) -> None:
    failing = tmp_path / "fail.py"
    failing.write_text(
        "import sys\nimport allhands as ah\nah.init_process_group()\n"
        "sys.exit(5 if ah.get_rank() == 3 else ah.barrier())\n"
    )
    done = submit(str(failing))
    assert done.returncode != 0
    assert list_leftovers(tmp_path) == []


def test_without_a_coordinator_beside_them_ranks_meet_on_the_first_node(
    submit: Submit, tmp_path: Path
) -> None:
    page = (ROOT / "docs/slurm.md").read_text()
    [lines] = re.findall(r"```sh\n(.*daemon\nsrun .*\n)```", page)
    make_credentials(tmp_path / "tls", "10.77.0.1")
    (tmp_path / "train.py").symlink_to(ROOT / "examples/hello.py")
    script = tmp_path / "script"
    script.write_text(f"folder={tmp_path}\n{lines}")
    done = submit(script=script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("of 4: all ranks add up to 6") == 4
