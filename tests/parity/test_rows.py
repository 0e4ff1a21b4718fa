"""Every row of the parity table is proven, and the table says by what."""

import pytest

from parity_rows import LATER, ROWS, TABLE, TORCH_ONLY, proofs


@pytest.mark.parametrize("row", sorted(set(ROWS) - TORCH_ONLY - LATER))
def test_every_row_has_a_test(row: int):
    assert proofs().get(row), f"no test is named test_p{row:03}_..."


def test_the_table_names_the_tests_that_there_are():
    told = {}
    for line in TABLE.read_text().splitlines():
        if line.startswith("| P"):
            row, _, result, names = (cell.strip() for cell in line.split("|")[1:5])
            told[int(row[1:])] = (result, [one.strip("`") for one in names.split("<br>") if one])
    assert set(told) == set(ROWS)
    for row, tests in proofs().items():
        assert told[row][1] == tests, f"write the table anew: make tables (P{row})"
    for row in set(ROWS) - TORCH_ONLY - LATER:
        assert told[row][0] == "passed", f"P{row}"
