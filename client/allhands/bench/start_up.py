"""Start-up of jobs: from the launcher's start to the first result on every rank, and to the end.

CPU seconds are those of launcher, ranks and all else that the job starts, over its whole life.
USS is the memory of a rank that no other process shares, with all ranks alive.
"""

import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from allhands.bench import interleaving
from allhands.bench.launchers import Launcher
from allhands.bench.rank_pool import RankPool, RankPoolFailed
from allhands.bench.ratios import Row, is_own

OPERATION = "start_up"
_MODULE = "allhands.bench.first_result"
_MIN_ROUNDS = 3
_END_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class JobFigures:
    """One job, or the medians of several."""

    wall: float
    """Seconds from the launcher's start until all ranks have their first result."""
    end: float
    """Seconds from the order to leave until all processes have ended."""
    cpu: float
    uss: float
    """Bytes of a rank, the mean of all."""
    threads: float
    """Of the rank that has most."""


def measure_job(launcher: Launcher, ranks: int) -> JobFigures:
    """Start a job, let it reduce one array, and end it.

    Raises:
        RankPoolFailed: the job failed, or a rank has a wrong result.
    """
    used = _read_children_seconds()
    with tempfile.TemporaryDirectory(prefix="allhands-bench-") as folder:
        begun = time.monotonic()
        pool = RankPool(launcher, ranks, Path(folder), module=_MODULE)
        wall = time.monotonic() - begun
        try:
            answers = pool.request({"do": "describe"})
            _check(launcher.system, ranks, answers)
            leaving = time.monotonic()
            pool.request({"do": "leave"})
            if not pool.wait_ended(_END_SECONDS):
                raise RankPoolFailed(
                    f"{launcher.system}, {ranks} ranks: not ended in {_END_SECONDS:.0f} s"
                )
        finally:
            pool.close()
    end = time.monotonic() - leaving
    return JobFigures(
        wall,
        end,
        _read_children_seconds() - used,
        statistics.fmean(one["uss"] for one in answers),
        max(one["threads"] for one in answers),
    )


def measure(launchers: Sequence[Launcher], ranks: int, budget: float) -> list[Row]:
    """Measure jobs of several systems in turn, three of each at least; return their rows."""
    figures: dict[str, list[JobFigures]] = {one.system: [] for one in launchers}
    failed: dict[str, str] = {}
    begun = time.monotonic()
    for rounds, order in enumerate(interleaving.rotate(launchers), 1):
        for launcher in order:
            if launcher.system not in failed:
                try:
                    figures[launcher.system].append(measure_job(launcher, ranks))
                except RankPoolFailed as failure:
                    failed[launcher.system] = str(failure)
        if rounds >= _MIN_ROUNDS and time.monotonic() - begun >= budget:
            break
    rows = [make_row(ranks, name, found, failed.get(name)) for name, found in figures.items()]
    _add_ratios(rows)
    return rows


def make_row(ranks: int, name: str, found: Sequence[JobFigures], failed: str | None) -> Row:
    row: Row = {"operation": OPERATION, "ranks": ranks, "contender": name, "failed": failed}
    if failed is None:
        row |= {
            field: statistics.median(one[field] for one in map(asdict, found))
            for field in JobFigures.__dataclass_fields__
        }
        row["low"], row["high"] = min(one.wall for one in found), max(one.wall for one in found)
        row["jobs"] = len(found)
    return row


def _add_ratios(rows: Sequence[Row]) -> None:
    """Add to each peer by which factor its wall time and CPU exceed those of allhands."""
    own = next((row for row in rows if is_own(row["contender"]) and "wall" in row), None)
    for row in rows:
        if own is not None and row is not own and "wall" in row:
            row["ratios"] = {name: row[name] / own[name] for name in ("wall", "cpu")}


def _check(system: str, ranks: int, answers: Sequence[dict[str, Any]]) -> None:
    due = ranks * (ranks + 1) / 2
    for rank, answer in enumerate(answers):
        if answer["result"] != [due, due]:
            raise RankPoolFailed(
                f"{system}, {ranks} ranks: WRONG RESULT on rank {rank}: {answer['result']}, "
                f"not {due} twice"
            )


def _read_children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


COLUMNS: dict[str, Callable[[Row], str]] = {
    "ranks": lambda row: str(row["ranks"]),
    "system": lambda row: row["contender"],
    "first result, s (least to most)": lambda row: (
        f"{row['wall']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
    ),
    "end, s": lambda row: f"{row['end']:.2f}",
    "CPU s of the job": lambda row: f"{row['cpu']:.2f}",
    "USS of a rank, MiB": lambda row: f"{row['uss'] / (1 << 20):.1f}",
    "threads": lambda row: f"{row['threads']:.0f}",
    "wall / allhands": lambda row: _format_ratio(row, "wall"),
    "CPU / allhands": lambda row: _format_ratio(row, "cpu"),
    "jobs": lambda row: str(row["jobs"]),
}
"""Titles of a table's columns, and what stands in them."""


def list_cells(row: Row) -> Iterator[str]:
    """Give the cells of a row of the table."""
    for number, form in enumerate(COLUMNS.values()):
        yield form(row) if number < 2 or row["failed"] is None else "failed"


def _format_ratio(row: Row, name: str) -> str:
    return f"{row['ratios'][name]:.2g}" if "ratios" in row else "-"
