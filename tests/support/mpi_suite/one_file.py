"""Runs one test file of mpi4py on this rank, and writes the outcomes as JSON.

It is the program of each rank: `one_file.py FOLDER FILE OUTPUT`, where OUTPUT gets the rank.
"""

import json
import re
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Outcomes = dict[str, tuple[str, str]]
"""Outcome and last line of the error, by test."""


_FIXTURE = re.compile(r"(setUp|tearDown)(Class|Module) \((.+)\)")
"""What the failed preparation of a class or file is called in place of a test."""


class _Result(unittest.TestResult):
    """Outcomes of tests; parts of a test count for the whole."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.outcomes: Outcomes = {}
        self._path = path

    def expect(self, suite: unittest.TestSuite) -> None:
        """Count the tests that the run does not come to."""
        self.outcomes = dict.fromkeys(_list_tests(suite), ("not reached", ""))
        self.save()

    def _note(self, test: Any, outcome: str, error: Any = None) -> None:
        said = "" if error is None else f"{error[0].__name__}: {error[1]}".splitlines()[0][:200]
        self._note_text(getattr(test, "test_case", test).id(), outcome, said)

    def _note_text(self, name: str, outcome: str, said: str) -> None:
        fixture = _FIXTURE.fullmatch(name)
        if fixture is not None:
            self._note_all_of(fixture[3], f"{fixture[1]}{fixture[2]}", outcome, said)
            return
        known = self.outcomes.get(name, ("running", ""))[0]
        if known in ("running", "not reached") or (outcome == "failed" and known != "failed"):
            self.outcomes[name] = outcome, said

    def _note_all_of(self, name: str, fixture: str, outcome: str, said: str) -> None:
        """Note the outcome of a class or file for its tests, none of which is run then."""
        tests = [
            test
            for test, (known, _) in self.outcomes.items()
            if known == "not reached" and test.startswith(f"{name}.")
        ]
        for test in tests or [f"{name}.{fixture}"]:
            self.outcomes[test] = outcome, said

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
        self._note_text(getattr(test, "test_case", test).id(), "skipped", reason[:200])

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self._note(test, "passed")

    def addUnexpectedSuccess(self, test: Any) -> None:
        self._note(test, "failed")

    def save(self) -> None:
        """Write what is known so far."""
        self._path.write_text(json.dumps(self.outcomes))


def _list_tests(suite: unittest.TestSuite) -> Iterator[str]:
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from _list_tests(one)
        else:
            yield one.id()


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
        result.expect(suite)
        suite.run(result)
    result.save()


main()
