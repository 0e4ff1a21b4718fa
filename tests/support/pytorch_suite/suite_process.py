"""Runs of PyTorch's own tests, in a process for each name, world size and gates."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, order=True)
class Run:
    """The conditions of a run of tests."""

    gates: str
    world_size: int

    def __str__(self) -> str:
        return f"{self.gates}, {self.world_size} ranks"


RUNS = (Run("stock", 3), Run("stock", 4), Run("widened", 3), Run("widened", 4))


@dataclass(frozen=True)
class Outcome:
    test: str
    outcome: str
    """pass, skip or fail."""
    seconds: float
    why: str

    @property
    def may_pass(self) -> bool:
        """Whether the test failed before its deadline."""
        return self.outcome == "fail" and "terminated or timed out after" not in self.why


class SuiteProcess:
    """A process with tests on request, in sequence."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    def close(self) -> None:
        """End the process, which has nothing to do."""
        self._process.communicate()

    def run_test(self, test: str) -> Outcome:
        """Run one test within the test's own deadline."""
        given, told = self._process.stdin, self._process.stdout
        assert given is not None
        assert told is not None
        given.write(f"{test}\n")
        given.flush()
        line = told.readline()
        assert line, f"the process of the tests ended during {test}"
        return Outcome(**json.loads(line))


def start_process(backend: str, run: Run) -> SuiteProcess:
    """Return a process for the tests of PyTorch's wheel."""
    return SuiteProcess(_command(backend, run))


def all_tests() -> list[str]:
    """Return the names of the tests, in order."""
    listing = [*_command("gloo", RUNS[0]), "--list"]
    return subprocess.check_output(listing, text=True, env=environment()).split()


def _command(backend: str, run: Run) -> list[str]:
    asked = ["--backend", backend, "--world-size", str(run.world_size), "--gates", run.gates]
    return [sys.executable, "-m", "support.pytorch_suite.suite_runner", *asked]


def environment() -> dict[str, str]:
    paths = [ROOT / one for one in ("tests", "proto", "server", "client")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
