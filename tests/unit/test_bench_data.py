"""The benchmark's check of results: passes what is right, and nothing else."""

import numpy as np
import pytest

from allhands.bench.cell import CONVENTIONS, DTYPES, Cell, cells_of, most_ranks
from allhands.bench.data import Array, Data, carrier, scale_of

SEED = 7


def brought(cell: Cell, rank: int, scale: int) -> Array:
    x = np.empty(cell.elements, carrier(cell.dtype))
    Data(cell, rank, SEED).fill(x, scale)
    return x


def numbers(cell: Cell, x: Array) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    if cell.dtype == "bfloat16":
        x = (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float64)


def result(cell: Cell, rank: int, scale: int) -> Array:
    """Do the operation by its definition, in float64."""
    all_of_them = [numbers(cell, brought(cell, one, scale)) for one in range(cell.ranks)]
    share = cell.elements // cell.ranks
    mine = slice(rank * share, (rank + 1) * share)
    due = {
        "all_reduce": lambda: sum(all_of_them),
        "reduce_scatter": lambda: sum(all_of_them)[mine],
        "all_gather": lambda: np.concatenate(all_of_them),
        "all_to_all": lambda: np.concatenate([one[mine] for one in all_of_them]),
        "broadcast": lambda: all_of_them[0],
        "sendrecv": lambda: all_of_them[1 - rank],
    }[cell.operation]()
    if cell.dtype == "bfloat16":
        return (due.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return due.astype(carrier(cell.dtype))


WITH_DATA = sorted(set(CONVENTIONS) - {"barrier"})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", WITH_DATA)
def test_the_result_by_definition_passes(operation: str, dtype: str) -> None:
    cell = Cell(operation, 3, 4000, dtype)
    for rank in range(2):
        assert Data(cell, rank, SEED).wrong(result(cell, rank, 3), 3) is None


@pytest.mark.parametrize("operation", WITH_DATA)
def test_one_wrong_element_does_not_pass_wherever_it_is(operation: str) -> None:
    cell = Cell(operation, 2, 1 << 20)  # more than is compared at once
    for place in (0, 70_000, -1):
        got = result(cell, 1, 2)
        got[place] += 1
        said = Data(cell, 1, SEED).wrong(got, 2)
        assert said is not None
        assert f"element {place % got.size} of" in said


@pytest.mark.parametrize("operation", WITH_DATA)
def test_the_result_of_the_call_before_does_not_pass(operation: str) -> None:
    cell = Cell(operation, 2, 8)
    before = result(cell, 0, scale_of(4))
    assert Data(cell, 0, SEED).wrong(before, scale_of(5)) is not None


def test_what_a_rank_brought_itself_is_not_the_result_of_an_all_reduce() -> None:
    cell = Cell("all_reduce", 2, 64)
    assert Data(cell, 0, SEED).wrong(brought(cell, 0, 1), 1) is not None


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_as_many_ranks_as_are_allowed_are_exact(dtype: str) -> None:
    ranks = min(most_ranks(dtype), 28)
    largest = np.array([9 * ranks])
    if dtype == "bfloat16":
        assert (largest.astype(np.float32).view(np.uint32) & 0xFFFF == 0).all()
    else:
        assert largest.astype(dtype).astype(np.int64) == largest


def test_sizes_are_what_each_rank_brings_with_equal_shares_for_all() -> None:
    assert (Cell("all_gather", 4, 1024).elements, Cell("all_gather", 4, 1024).output_elements) == (
        256,
        1024,
    )
    assert Cell("reduce_scatter", 4, 1024).output_elements == 64
    assert Cell("all_to_all", 4, 8).elements == 4
    assert Cell("all_reduce", 4, 1, "float64").elements == 1


def test_a_table_has_one_barrier_and_no_partner_for_a_single_rank() -> None:
    cells = cells_of(["sendrecv", "barrier", "broadcast"], 1, [8, 16], ["float32", "int8"])
    assert [cell.operation for cell in cells] == ["barrier"] + ["broadcast"] * 4
