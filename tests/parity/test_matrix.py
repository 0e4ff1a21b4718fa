"""Every operation on every dtype: exact, or refused while nothing has happened."""

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from allhands.testing import run_threads
from programs.tables import run_every_dtype_case
from support.arrays import dtype_cases
from support.arrays.dtype_cases import CELLS, WORKS, Cell
from support.arrays.dtype_table import table
from support.ranks.processes import Job

DOCUMENT = Path(__file__).parents[2] / "docs" / "matrix.md"
WRITE = "ALLHANDS_WRITE_TABLES"
"""Set by `make tables`: the table is written, not compared."""

Rows = list[list[tuple[str, str]]]
"""Of each rank, of each cell: how it ended, and what is wrong about that."""


@cache
def over_links(size: int) -> Rows:
    return run_threads(size)(lambda rank: dtype_cases.outcomes(rank, size))


def agreed(rows: Rows) -> dict[Cell, str]:
    """Return how cells ended; all ranks say the same, and nothing is wrong with any."""
    wrong = [
        (cell, rank, fault)
        for rank, row in enumerate(rows)
        for cell, (_, fault) in zip(CELLS, row, strict=True)
        if fault
    ]
    assert not wrong
    split = [
        cell for cell, *said in zip(CELLS, *rows, strict=True) if len({one for one, _ in said}) > 1
    ]
    assert not split
    return {cell: said for cell, (said, _) in zip(CELLS, rows[0], strict=True)}


@pytest.mark.parametrize("size", [2, 3])
def test_every_cell_over_links_is_exact_or_refused(size: int) -> None:
    found = agreed(over_links(size))
    assert {cell for cell, said in found.items() if said == WORKS} == {
        cell for cell in CELLS if dtype_cases.is_defined(cell.operation, cell.op, cell.dtype)
    }
    refused = {said for said in found.values() if said != WORKS}
    assert all(said.startswith("TypeError: ") for said in refused)


@pytest.mark.parametrize("size", [2, 3])
def test_every_cell_over_shared_memory_is_as_over_links(job: Job, size: int) -> None:
    ranks: list[Any] = job(size, run_every_dtype_case)
    rows = [rank.expect("done")["rows"] for rank in ranks]
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)
    assert agreed(rows) == agreed(over_links(size))


def test_the_table_in_the_documents_is_what_was_seen() -> None:
    seen = table(agreed(over_links(2)))
    assert seen == table(agreed(over_links(3)))
    if os.environ.get(WRITE):
        DOCUMENT.write_text(seen)
    assert DOCUMENT.read_text() == seen, "run `make tables`, and look at what has changed"
