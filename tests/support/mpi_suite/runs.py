"""Runs of test files of mpi4py: over allhands or an MPI library, on so many ranks."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import allhands

_ONE_FILE = Path(__file__).with_name("one_file.py")
_CLIENT = Path(allhands.__file__).parents[1]
ALLHANDS = "allhands"
SECONDS = 200
"""Time that one file may take."""
_SECONDS_TO_END = 15
"""Time that the launcher has to end its ranks, which need not be in its process group."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a test on all ranks."""

    status: str
    """passed, failed, hung or skipped: the worst of the ranks."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class FileRun:
    """What became of a file's tests on so many ranks."""

    outcomes: dict[str, Outcome]
    has_ended: bool

    def count(self) -> "Counter[str]":
        """Return how many tests passed, failed, hung and were skipped."""
        return Counter(outcome.status for outcome in self.outcomes.values())


_ORDER = ("passed", "skipped", "failed", "hung")


def run_file(folder: Path, name: str, ranks: int, over: str, python: str = "") -> FileRun:
    """Run a test file; what has not ended in time is ended, with all its processes.

    Args:
        over: allhands, or the name of the MPI library that `python` has mpi4py for.
    """
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "outcomes"
        program = [str(_ONE_FILE), str(folder), name, str(output)]
        process = subprocess.Popen(
            _make_command(over, python, ranks, program),
            env=_make_environment(folder, over),
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            _, said = process.communicate(timeout=SECONDS)
            has_ended = process.returncode == 0
        except subprocess.TimeoutExpired:
            said = _end(process)
            has_ended = False
        found = [
            json.loads(path.read_text())
            for rank in range(ranks)
            if (path := Path(f"{output}.{rank}.json")).exists()
        ]
    return FileRun(_combine(name, found, ranks, has_ended, said), has_ended)


def _end(process: "subprocess.Popen[str]") -> str:
    """End a launcher and its ranks; return what they said."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        return process.communicate(timeout=_SECONDS_TO_END)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[1]


def _make_command(over: str, python: str, ranks: int, program: list[str]) -> list[str]:
    if over == ALLHANDS:
        return [
            sys.executable,
            "-m",
            "allhands.cli.main",
            "run",
            "--mpi",
            "-n",
            str(ranks),
            *program,
        ]
    if over == "openmpi":
        launcher = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"]
    else:
        launcher = [str(Path(python).with_name("mpiexec"))]
    return [*launcher, "-n", str(ranks), python, *program]


def _make_environment(folder: Path, over: str) -> dict[str, str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if over == ALLHANDS:
        # Its parts in Python, over our MPI.
        paths = [str(_CLIENT), str(folder / "src"), environment.get("PYTHONPATH", "")]
        environment["MPI4PY_TEST_SPAWN"] = "no"
        return environment | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    environment.pop("PYTHONPATH", None)
    return environment


def _combine(
    name: str,
    found: list[dict[str, tuple[str, str]]],
    ranks: int,
    has_ended: bool,
    said: str,
) -> dict[str, Outcome]:
    if not any(found):
        lines = said.strip().splitlines() or ["it ended without a word"]
        return {name: Outcome("failed" if has_ended or said else "hung", lines[-1][:200])}
    outcomes: dict[str, Outcome] = {}
    for test in dict.fromkeys(test for one in found for test in one):
        seen = [one[test] for one in found if test in one]
        status, error = max(seen, key=lambda pair: _ORDER.index(_rename(pair[0])))
        status = _rename(status)
        if status == "passed" and len(seen) < ranks:
            status, error = "hung", "not all ranks came to its end"
        elif status == "hung":
            reached = any(one == "running" for one, _ in seen)
            error = "it did not end" if reached else "an earlier test of the file did not end"
        outcomes[test] = Outcome(status, error if status != "passed" else "")
    return outcomes


def _rename(status: str) -> str:
    return "hung" if status in ("running", "not reached") else status
