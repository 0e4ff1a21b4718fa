"""examples/slurm on a cluster of Slurm itself, with two nodes."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from allhands.bench.launchers import BenchHost
from allhands.testing.poll import poll_until
from support.deployments.slurm_cluster import SlurmCluster, open_cluster
from support.deployments.stage import ROOT
from support.tls_contexts import make_credentials

SCRIPT = ROOT / "examples/slurm/hello.sbatch"
HELLO = str(ROOT / "examples/hello.py")


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, hosts: tuple[BenchHost, BenchHost]
) -> Iterator[SlurmCluster]:
    with open_cluster(tmp_path_factory.mktemp("slurm"), hosts) as opened:
        yield opened


def list_credentials(cluster: SlurmCluster) -> list[Path]:
    return list((cluster.folder / "work").glob(".allhands*"))


def expect_world(text: str, size: int) -> None:
    for rank in range(size):
        greeting = f"hello from rank {rank} of {size}: all ranks add up to {sum(range(size))}"
        assert greeting in text, text
    assert {"allhands-a", "allhands-b"} <= set(re.findall(r"allhands-[ab]", text))


def test_the_batch_script_is_a_world_over_the_nodes(cluster: SlurmCluster) -> None:
    job = cluster.submit(SCRIPT, HELLO)
    assert cluster.wait(job) == "COMPLETED", cluster.read_output(job)
    expect_world(cluster.read_output(job), 4)
    assert f"job hello-{job}: running" in cluster.read_output(job)
    assert list_credentials(cluster) == []


def test_a_job_whose_rank_fails_has_failed_and_the_rank_has_a_name(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    program = tmp_path / "fail.py"
    program.write_text(
        "import os, allhands as ah\nah.init_process_group(timeout=60)\nah.barrier()\n"
        "if ah.get_rank() == 3: os._exit(5)\n"
        "ah.barrier()\n"
    )
    job = cluster.submit(SCRIPT, str(program))
    assert cluster.wait(job) == "FAILED"
    log = (cluster.folder / "work" / f"allhands-{job}.log").read_text()
    assert "rank 3 (host allhands-b" in log
    assert list_credentials(cluster) == []


def test_a_job_that_is_cancelled_leaves_no_credentials(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    program = tmp_path / "wait.py"
    program.write_text(
        "import signal, allhands as ah\nah.init_process_group(timeout=60)\n"
        "print('waits', flush=True)\nsignal.pause()\n"
    )
    job = cluster.submit(SCRIPT, str(program))
    output = cluster.folder / "work" / f"{job}.out"
    poll_until(lambda: output.exists() and output.read_text().count("waits") == 4, 60)
    assert list_credentials(cluster)
    cluster.run("scancel", str(job))
    assert cluster.wait(job) == "CANCELLED"
    poll_until(lambda: not list_credentials(cluster), 30)


def test_without_a_coordinator_of_the_script_ranks_meet_on_the_first_node(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    made = make_credentials(tmp_path / "tls", "allhands-a")
    script = tmp_path / "script"
    script.write_text(
        "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks=2\n"
        f"ALLHANDS_TLS_DIR={made}/daemon srun python {HELLO}\n"
    )
    job = cluster.submit(script)
    assert cluster.wait(job) == "COMPLETED", cluster.read_output(job)
    expect_world(cluster.read_output(job), 2)
