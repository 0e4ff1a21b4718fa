"""The comparison of allhands with Gloo, test by test: a program for the record.

    python -m support.pytorch_suite.compare [--kept FILE] [--again TEST ...]

Both backends have their turn at the same time, in a process each. What is in the file that is kept
is not run a second time, but for tests that are to be run again.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict
from itertools import repeat
from pathlib import Path
from typing import Any

from support.pytorch_suite.record import BACKENDS, DOCUMENT, Record, text
from support.pytorch_suite.suite_process import RUNS, Outcome, Run, all_tests, start_process

_TRIES = 2
"""A machine that does other things makes tests fail that have deadlines."""

Key = tuple[str, str, str]
"""A backend, a run and a test."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kept", type=Path, default=Path(".venv/pytorch_suite.jsonl"))
    parser.add_argument("--again", nargs="*", default=[], metavar="TEST")
    given = parser.parse_args()
    tests = all_tests()
    kept = _Kept(given.kept, given.again)
    for run in RUNS:
        with ThreadPoolExecutor() as both:
            list(both.map(_run_tests, BACKENDS, repeat(run), repeat(tests), repeat(kept)))
    DOCUMENT.write_text(text(kept.record(tests)))


class _Kept:
    """Outcomes in an append-only file; the last outcome of a test counts."""

    def __init__(self, file: Path, again: Sequence[str]) -> None:
        self._file = file
        self._found: dict[Key, dict[str, Any]] = {}
        if file.exists():
            for line in file.read_text().splitlines():
                one = json.loads(line)
                if one["outcome"]["test"] not in again or one["outcome"]["outcome"] == "skip":
                    self._found[one["backend"], one["run"], one["outcome"]["test"]] = one

    def has(self, backend: str, run: Run, test: str) -> bool:
        return (backend, str(run), test) in self._found

    def add(self, backend: str, run: Run, outcome: Outcome, tries: int) -> None:
        one = {"backend": backend, "run": str(run), "tries": tries, "outcome": asdict(outcome)}
        self._found[backend, str(run), outcome.test] = one
        with self._file.open("a") as file:
            file.write(json.dumps(one) + "\n")

    def record(self, tests: Sequence[str]) -> Record:
        outcomes = {
            backend: {
                test: [Outcome(**self._found[backend, str(run), test]["outcome"]) for run in RUNS]
                for test in tests
            }
            for backend in BACKENDS
        }
        tried_again = [
            f"{test} ({backend}; {run})"
            for (backend, run, test), one in self._found.items()
            if one["tries"] > 1 and one["outcome"]["outcome"] == "pass"
        ]
        return Record(outcomes, tried_again)


def _run_tests(backend: str, run: Run, tests: Sequence[str], kept: _Kept) -> None:
    left = [one for one in tests if not kept.has(backend, run, one)]
    if not left:
        return
    with closing(start_process(backend, run)) as process:
        for test in left:
            tries = 1
            while (one := process.run_test(test)).may_pass and tries < _TRIES:
                tries += 1
            kept.add(backend, run, one, tries)
            print(f"{backend}, {run}: {test}: {one.outcome}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
