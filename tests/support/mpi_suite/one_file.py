"""Runs one test file of mpi4py on this rank, and writes the outcomes as JSON.

It is the program of each rank: `one_file.py FOLDER FILE OUTPUT`, where OUTPUT gets the rank.
"""

import json
import sys
import unittest
from pathlib import Path
from typing import Any

Outcomes = dict[str, tuple[str, str]]
"""Outcome and last line of the error, by test."""


class _Result(unittest.TestResult):
    """Outcomes of tests; parts of a test count for the whole."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.outcomes: Outcomes = {}
        self._path = path

    def _note(self, test: Any, outcome: str, error: Any = None) -> None:
        name = getattr(test, "test_case", test).id()
        said = "" if error is None else f"{error[0].__name__}: {error[1]}".splitlines()[0][:200]
        if self.outcomes.get(name, ("passed", ""))[0] in ("passed", "running"):
            self.outcomes[name] = outcome, said

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        self.outcomes[test.id()] = "running", ""
        self.save()

    def addSuccess(self, test: Any) -> None:
        self._note(test, "passed")

    def addFailure(self, test: Any, err: Any) -> None:
        self._note(test, "failed", err)

    def addError(self, test: Any, err: Any) -> None:
        self._note(test, "failed", err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self._note(test, "failed", err)

    def addSkip(self, test: Any, reason: str) -> None:
        self._note(test, "skipped")
        self.outcomes[getattr(test, "test_case", test).id()] = "skipped", reason[:200]

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self._note(test, "passed")

    def addUnexpectedSuccess(self, test: Any) -> None:
        self._note(test, "failed")

    def save(self) -> None:
        """Write what is known so far."""
        self._path.write_text(json.dumps(self.outcomes))


def main() -> None:
    """Run the file that the arguments name."""
    folder, name, output = sys.argv[1:4]
    sys.path.insert(0, str(Path(folder) / "test"))
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.Get_rank()
    result = _Result(Path(f"{output}.{rank}.json"))
    try:
        suite = unittest.defaultTestLoader.loadTestsFromName(name)
    except unittest.SkipTest as skipped:
        result.outcomes[name] = "skipped", str(skipped)
    else:
        suite.run(result)
    result.save()


main()
