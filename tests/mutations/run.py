"""Breaks behaviours of the package one by one, and reports the tests of the row that notice.

    make mutations                      # all of them; the table of parity is written anew
    make mutations ARGS="17 28"         # those of some rows
    make mutations ARGS="--all 17"      # and which rows notice, of all there are

It works in copies of the tree: what is in the tree itself stays as it is. A run that does not end
counts as noticed, and so does one that the mutation keeps from beginning.
"""

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mutations import seen
from mutations.mutation import ROOT, SOURCES, DoesNotFit, Mutation
from mutations.seen import Seen
from mutations.table import MUTATIONS
from support.parity import rows

PER_TEST = 100
"""Seconds after which a test that hangs has noticed."""
MOST_SECONDS = 900
"""That all tests of a row may take under a mutation."""
ENOUGH = 3
"""Tests that have to fail for a row to have noticed, unless all are run."""
_COPIED = ("client", "server", "proto", "tests", "examples", "docs", "pyproject.toml", "README.md")
_BUILD = """
import sys, pathlib, hatch_build
hatch_build.compile_extension(*map(pathlib.Path, sys.argv[1:]))
"""


@dataclass(frozen=True)
class Copy:
    """A copy of the tree for one mutation at a time."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> "Copy":
        for name in (*_COPIED, "hatch_build.py"):
            source, target = ROOT / name, folder / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
                shutil.copytree(source, target, ignore=ignored)
            elif source.exists():
                shutil.copy2(source, target)
        return cls(folder)

    def run(self, tests: Sequence[str], enough: int = 0) -> list[str]:
        """Run tests until `enough` have failed; return failed tests, parameters left out."""
        report = self.folder / "report.xml"
        report.unlink(missing_ok=True)
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("--rootdir", str(self.folder), f"--junitxml={report}", "-o", "junit_family=xunit1"),
            *(f"--timeout={PER_TEST}", f"--maxfail={enough}", "-m", "not nightly", *tests),
        ]
        try:
            subprocess.run(
                command,
                cwd=self.folder,
                env=self._environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL,
                timeout=MOST_SECONDS,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            return list(tests)
        if not report.exists():  # it ended the whole run
            return list(tests)
        cases = [*ElementTree.parse(report).iter("testcase")]
        failed = [one for one in cases if any(x.tag in ("failure", "error") for x in one)]
        known = {_dotted(one): one for one in tests}
        named = {known.get(_name(one), "") for one in failed}
        # What is no test of them is a file that cannot be read: none of its tests is seen.
        return sorted(named) if cases and "" not in named else list(tests)

    def mutated(self, mutation: Mutation, tests: Sequence[str], enough: int) -> list[str]:
        """Run tests with a mutation, as `run`; the copy is unchanged afterwards.

        Raises:
            DoesNotFit: the mutation does.
        """
        path = self.folder / mutation.path
        sound, before = path.read_text(), path.stat()
        path.write_text(mutation.applied(sound))
        core = self._core()
        kept = core.read_bytes() if mutation.is_of_c else b""
        try:
            if mutation.is_of_c:
                self._build(core)
            return self.run(tests, enough)
        finally:
            path.write_text(sound)
            # With its old stamp, so that its bytecode is good again.
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            if mutation.is_of_c:
                core.unlink()  # others may have it mapped
                core.write_bytes(kept)

    def check(self) -> None:
        """Check that tests of this copy import the copy's package."""
        script = "import allhands, allhands_server; print(allhands.__file__)"
        found = subprocess.run(
            [sys.executable, "-c", script],
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        assert Path(found).is_relative_to(self.folder), f"{found} is not in {self.folder}"

    def _environment(self) -> dict[str, str]:
        paths = [self.folder / name for name in ("proto", "server", "client", "tests")]
        found = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
        found["PYTHONPYCACHEPREFIX"] = str(self.folder / "pycache")
        found.pop("PYTHONDONTWRITEBYTECODE", None)
        return found

    def _core(self) -> Path:
        return next((self.folder / SOURCES).glob("_native*.so"))

    def _build(self, core: Path) -> None:
        core.unlink()
        command = [sys.executable, "-c", _BUILD, str(SOURCES / "native"), str(core)]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)


def main() -> int:
    """Run the requested mutations; return 1 if any went unnoticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", nargs="*", type=int, help="rows, by number; by default all")
    parser.add_argument("--all", action="store_true", help="say which rows notice, of all")
    parser.add_argument("--jobs", type=int, default=2, help="copies at work at the same time")
    parser.add_argument("--missing", action="store_true", help="only what was not seen yet")
    asked = parser.parse_args()
    found = seen.read()
    chosen = [
        one
        for one in MUTATIONS
        if (not asked.rows or one.row in asked.rows)
        and not (asked.missing and found.get(seen.key(one), Seen(())).noticed)
    ]
    for one in chosen:  # before anything is run
        one.applied((ROOT / one.path).read_text())
    unnoticed = 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copies: queue.Queue[Copy] = queue.Queue()
        for at in range(min(asked.jobs, len(chosen)) or 1):
            copies.put(Copy.make(Path(folder, str(at))))
        first = copies.get()
        first.check()
        copies.put(first)
        every = sorted({test for one in MUTATIONS for test in one.tests}) if asked.all else []

        def judge(mutation: Mutation) -> tuple[Mutation, Seen]:
            copy = copies.get()
            try:
                failed = copy.mutated(mutation, every or mutation.tests, 0 if every else ENOUGH)
                # What fails without it has noticed nothing.
                unsound = copy.run(failed) if failed else []
            finally:
                copies.put(copy)
            failed = sorted({*failed} - {*unsound})
            own = [one for one in failed if one in mutation.tests]
            rows = tuple(sorted({_row(one) for one in failed})) if every else ()
            return mutation, Seen(tuple(one.removeprefix("tests/") for one in own), rows)

        with ThreadPoolExecutor(asked.jobs) as pool:
            for mutation, what in pool.map(judge, chosen):
                found[seen.key(mutation)] = what
                seen.write(found)
                unnoticed += not what.noticed
                verdict = f"{len(what.noticed)} tests" if what.noticed else "NOBODY"
                also = f", rows {list(what.rows)}" if what.rows else ""
                print(f"P{mutation.row}: {mutation.breaks}: noticed by {verdict}{also}", flush=True)
    rows.refresh()
    print(f"{len(chosen)} mutations, {unnoticed} that nobody noticed")
    return int(unnoticed > 0)


def _dotted(test: str) -> str:
    """Return a test's name in the form of the report."""
    return test.replace(".py::", "::").replace("/", ".").replace("::", ".")


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}.{case.get('name', '').partition('[')[0]}"


def _row(test: str) -> int:
    return int(test.rpartition("::")[2][6:9])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DoesNotFit as error:
        sys.exit(str(error))
