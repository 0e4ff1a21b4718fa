"""Stand-in for srun and scontrol: nodes are named by a variable, with the command that enters each.

SLURM_STAND_IN is an object of JSON: by node, the words that go before a command to run it there.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from allhands.runtime.slurm import expand_nodelist

VARIABLE = "SLURM_STAND_IN"
_OPTIONS = ("--kill-on-bad-exit=1",)


def install(folder: Path) -> None:
    """Put both commands into a folder for the PATH."""
    folder.mkdir()
    for name in ("srun", "scontrol"):
        path = folder / name
        path.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path[:0] = {sys.path!r}\n"
            f"from support.deployments import srun\nsrun.{name}(sys.argv[1:])\n"
        )
        path.chmod(0o755)


def enter(prefix: Sequence[str], folder: Path) -> list[str]:
    """Return what goes before a command to run it on a node in a folder that all nodes share."""
    return [*prefix, "env", f"--chdir={folder}"]


def scontrol(arguments: Sequence[str]) -> None:
    """Expand a list of nodes, as `scontrol show hostnames LIST` does."""
    show, hostnames, nodes = arguments
    assert (show, hostnames) == ("show", "hostnames")
    sys.stdout.writelines(f"{one}\n" for one in expand_nodelist(nodes))


def srun(arguments: Sequence[str]) -> None:
    """Run a command in each task of a step that has all nodes of its job."""
    command = list(itertools.dropwhile(lambda word: word.startswith("--"), arguments))
    options = arguments[: len(arguments) - len(command)]
    assert set(options) <= set(_OPTIONS), options
    nodes = json.loads(os.environ[VARIABLE])
    on_each = int(os.environ["SLURM_NTASKS_PER_NODE"])
    tasks = [
        subprocess.Popen(
            [*enter(prefix, Path.cwd()), *command],
            env={
                **os.environ,
                "SLURM_PROCID": str(node * on_each + local),
                "SLURM_LOCALID": str(local),
                "SLURM_NODEID": str(node),
                "SLURM_NTASKS": str(on_each * len(nodes)),
                "SLURM_STEP_ID": "0",
                "SLURM_STEP_NUM_NODES": str(len(nodes)),
                "SLURM_STEP_NODELIST": os.environ["SLURM_JOB_NODELIST"],
            },
        )
        for node, prefix in enumerate(nodes.values())
        for local in range(on_each)
    ]
    worst = 0
    for task in tasks:
        if (status := task.wait()) and not worst:
            worst = status
            for other in tasks:
                other.send_signal(signal.SIGKILL)
    raise SystemExit(worst)
