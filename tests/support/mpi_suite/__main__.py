"""Writes docs/mpi_suite.md from a run of mpi4py's tests over allhands and MPI libraries.

The libraries are those whose Pythons ALLHANDS_BENCH_OPENMPI_PYTHON and
ALLHANDS_BENCH_MPICH_PYTHON name.
"""

import argparse
import json
import os
from collections import Counter
from pathlib import Path

from support.mpi_suite.reasons import find_reason
from support.mpi_suite.runs import ALLHANDS, SECONDS, FileRun, Outcome, run_file
from support.mpi_suite.source import RELEASE, fetch, list_files

_PAGE = Path(__file__).parents[3] / "docs" / "mpi_suite.md"
_PEERS = {
    "openmpi": ("Open MPI", "ALLHANDS_BENCH_OPENMPI_PYTHON"),
    "mpich": ("MPICH", "ALLHANDS_BENCH_MPICH_PYTHON"),
}
_RANKS = (1, 2, 3, 5)

Runs = dict[tuple[str, int, str], FileRun]
"""By file, ranks and what it ran over."""


def main() -> None:
    """Run what the arguments name, and write the page if all was run."""
    parser = argparse.ArgumentParser(prog="support.mpi_suite", description=__doc__)
    parser.add_argument("--ranks", default=",".join(map(str, _RANKS)), help="1,2,3,5")
    parser.add_argument("--files", default="", help="test_comm,test_op; without it all")
    parser.add_argument("--page", default=str(_PAGE), help="what is written")
    parser.add_argument(
        "--kept",
        type=Path,
        default=Path(".venv/mpi_suite.jsonl"),
        help="file of what was run, which is not run again",
    )
    given = parser.parse_args()
    folder = fetch()
    files = [name for name in given.files.split(",") if name] or list_files(folder)
    ranks = [int(one) for one in given.ranks.split(",")]
    peers = {key: os.environ[name] for key, (_, name) in _PEERS.items() if name in os.environ}
    runs = _read_kept(given.kept)
    for name in files:
        for count in ranks:
            for over, python in ({ALLHANDS: ""} | peers).items():
                if (name, count, over) in runs:
                    continue
                runs[name, count, over] = run = run_file(folder, name, count, over, python)
                _keep(given.kept, (name, count, over), run)
                counted = ", ".join(f"{number} {what}" for what, number in run.count().items())
                print(f"{name} on {count} over {over}: {counted}", flush=True)
    Path(given.page).write_text(write_page(runs, files, ranks, list(peers)))


def _read_kept(path: Path) -> Runs:
    runs: Runs = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        name, count, over, has_ended, outcomes = json.loads(line)
        found = {test: Outcome(*one) for test, one in outcomes.items()}
        runs[name, count, over] = FileRun(found, has_ended)
    return runs


def _keep(path: Path, key: tuple[str, int, str], run: FileRun) -> None:
    outcomes = {test: (one.status, one.error) for test, one in run.outcomes.items()}
    with path.open("a") as file:
        file.write(json.dumps([*key, run.has_ended, outcomes]) + "\n")


def write_page(runs: Runs, files: list[str], ranks: list[int], peers: list[str]) -> str:
    """Return the page."""
    titles = ["allhands", *(_PEERS[peer][0] for peer in peers)]
    counts = "1 rank" if ranks == [1] else f"{', '.join(map(str, ranks))} ranks"
    lines = [
        "# mpi4py's own tests",
        "",
        f"The tests of mpi4py {RELEASE} on {counts}, over the MPI of [allhands](mpi.md) and over "
        "the MPI libraries that were there, on one host. `make table-mpi` fetches the "
        "tests, which are no part of allhands, and writes this page.",
        "",
        "A number is that of tests on all these numbers of ranks: passed, failed, skipped by the "
        "tests themselves. A test that does not end within "
        f"{SECONDS} s of its file is one that failed, as are those after it; a file that cannot be "
        "imported is one test. Over allhands, which spawns no processes, the tests are told so "
        "(`MPI4PY_TEST_SPAWN=no`), and skip those that would.",
        "",
        "| file | " + " | ".join(titles) + " |",
        "|---|" + "---|" * len(titles),
    ]
    total: dict[str, Counter[str]] = {over: Counter() for over in (ALLHANDS, *peers)}
    for name in files:
        cells = []
        for over in (ALLHANDS, *peers):
            counted: Counter[str] = Counter()
            for count in ranks:
                counted += runs[name, count, over].count()
            total[over] += counted
            cells.append(_format(counted))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines.append("| **all** | " + " | ".join(_format(one) for one in total.values()) + " |")
    lines += ["", "## What fails over allhands", ""]
    lines += _list_failures(runs, files, ranks) or ["Nothing."]
    return "\n".join(lines) + "\n"


def _format(counted: "Counter[str]") -> str:
    failed = counted["failed"] + counted["hung"]
    return f"{counted['passed']}, {failed}, {counted['skipped']}"


def _describe(outcome: Outcome) -> str:
    if outcome.status == "hung":
        return f"its file took longer than {SECONDS} s"
    return f"not understood: {outcome.error}"


def _list_failures(runs: Runs, files: list[str], ranks: list[int]) -> list[str]:
    """Return a table of reasons, with the tests that they are of."""
    by_reason: dict[str, dict[str, list[int]]] = {}
    for name in files:
        for count in ranks:
            for test, outcome in runs[name, count, ALLHANDS].outcomes.items():
                if outcome.status in ("failed", "hung"):
                    reason = find_reason(test) or _describe(outcome)
                    by_reason.setdefault(reason, {}).setdefault(test, []).append(count)
    if not by_reason:
        return []
    lines = ["| why | tests |", "|---|---|"]
    for reason, tests in by_reason.items():
        grouped = Counter(test.rpartition(".")[0] for test in tests)
        named = [
            f"`{group}` ({number})"
            if number > 3
            else ", ".join(f"`{test}`" for test in tests if test.rpartition(".")[0] == group)
            for group, number in grouped.items()
        ]
        said = reason.replace("|", "\\|")
        lines.append(f"| {said} | {'; '.join(named)} |")
    return lines


main()
