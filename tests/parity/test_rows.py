"""Every row of the parity table is proven, and the table names the tests."""

import pytest

from support.parity.rows import (
    LATER,
    NATIVE_ONLY,
    ROWS,
    TABLE,
    TORCH,
    TORCH_ONLY,
    proofs,
    refreshed,
    told,
)


@pytest.mark.parametrize("row", sorted(set(ROWS) - TORCH_ONLY - LATER))
def test_every_row_has_a_test(row: int):
    assert proofs().get(row), f"no test is named test_p{row:03}_..."


@pytest.mark.parametrize("row", sorted(set(ROWS) - NATIVE_ONLY - LATER))
def test_every_row_has_a_test_on_the_face_of_pytorch(row: int):
    assert proofs(TORCH).get(row), f"no test in tests/pytorch is named test_p{row:03}_..."


def test_the_table_names_the_tests_that_there_are():
    rows, native, torch = told(), proofs(), proofs(TORCH)
    assert set(rows) == set(ROWS)
    for row, (result, tests, on_torch) in rows.items():
        assert tests == native.get(row, []), f"write the table anew: make tables (P{row})"
        assert on_torch == torch.get(row, []), (
            f"PYTHONPATH=tests python -m support.parity.rows (P{row})"
        )
        if row not in TORCH_ONLY | LATER:
            assert result == "passed", f"write the table anew: make tables (P{row})"


def test_the_table_says_what_the_records_say():
    assert TABLE.read_text() == refreshed(), (
        "write it anew: PYTHONPATH=tests python -m support.parity.rows"
    )
