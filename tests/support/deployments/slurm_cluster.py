"""A cluster of Slurm on two hosts, which are network namespaces, with daemons of its own."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from allhands.bench.launchers import BenchHost
from allhands.testing.poll import poll_until

_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "scancel", "sinfo", "squeue")
_PATIENCE = 60.0
_CONFIGURATION = """
ClusterName=test
SlurmctldHost={first.name}({first.address})
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
ReturnToService=2
MpiDefault=none
KillWait=10
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    """Two nodes that share a folder."""

    def __init__(self, folder: Path, hosts: Sequence[BenchHost]) -> None:
        self.folder = folder
        self._hosts = hosts
        kept = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("ALLHANDS_", "SLURM_"))
        }
        self._environment = {
            **kept,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{folder / 'bin'}:{kept['PATH']}",
            "XDG_RUNTIME_DIR": str(folder / "no such folder"),
            "OMP_NUM_THREADS": "1",
        }

    def submit(self, script: Path, *arguments: str) -> int:
        """Submit a batch script in `folder / "work"`; return the job's number."""
        place = ("--chdir", str(self.folder / "work"), "--output", "%j.out", "--parsable")
        return int(self.run("sbatch", *place, str(script), *arguments))

    def wait(self, job: int) -> str:
        """Wait for the end of a job; return its state, such as COMPLETED."""
        ask = ("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}")
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        poll_until(lambda: self.run(*ask).strip() in ended, _PATIENCE)
        return self.run(*ask).strip()

    def read_output(self, job: int) -> str:
        return (self.folder / "work" / f"{job}.out").read_text()

    def run(self, *command: str) -> str:
        """Run a command of Slurm on the first node; return what it prints."""
        return subprocess.run(
            [*self._hosts[0].command_prefix, *command],
            env=self._environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=_PATIENCE,
        ).stdout

    def start_daemon(self, host: BenchHost, *command: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*host.command_prefix, *command],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


@contextmanager
def open_cluster(folder: Path, hosts: Sequence[BenchHost]) -> Iterator[SlurmCluster]:
    """Run the daemons of a cluster for a block; skip the test where there is no Slurm."""
    if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
        pytest.skip(f"{missing[0]} is not installed: apt install slurm-wlm")
    for name in ("work", "state", "bin"):
        (folder / name).mkdir()
    nodes = [f"NodeName={one.name} NodeAddr={one.address} CPUs=2 State=UNKNOWN\n" for one in hosts]
    text = _CONFIGURATION.format(first=hosts[0], folder=folder)
    (folder / "slurm.conf").write_text(text + "".join(nodes))
    for name, module in (("python", ""), ("allhands", " -m allhands.cli.main")):
        command = folder / "bin" / name
        command.write_text(f'#!/bin/sh\nexec {sys.executable}{module} "$@"\n')
        command.chmod(0o755)
    (folder / "hosts").write_text(
        "127.0.0.1 localhost\n" + "".join(f"{one.address} {one.name}\n" for one in hosts)
    )
    cluster = SlurmCluster(folder, hosts)
    with ExitStack() as stack:
        for one in hosts:  # each has a table of mounts of its own
            mount = ("mount", "--bind", str(folder / "hosts"), "/etc/hosts")
            subprocess.run([*one.command_prefix, *mount], check=True)
        stack.callback(_end, cluster.start_daemon(hosts[0], "slurmctld", "-D"))
        for one in hosts:
            stack.callback(_end, cluster.start_daemon(one, "slurmd", "-D", "-N", one.name))
        poll_until(lambda: _is_idle(cluster, len(hosts)), _PATIENCE)
        yield cluster


def _is_idle(cluster: SlurmCluster, nodes: int) -> bool:
    with contextlib.suppress(subprocess.CalledProcessError):  # it does not listen yet
        return cluster.run("sinfo", "--noheader", "--format=%T %D").strip() == f"idle {nodes}"
    return False


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    process.wait(_PATIENCE)
