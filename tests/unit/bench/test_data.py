"""The benchmark's check of results: right results pass, wrong ones fail."""

import numpy as np
import pytest

from allhands.bench import training
from allhands.bench.case import (
    ASYNCHRONOUS,
    BATCH,
    COLLECTIVES,
    COMPOSITE,
    DTYPES,
    FORMS,
    BenchCase,
    list_cases,
    max_ranks,
)
from allhands.bench.data import Array, CaseData, choose_scale, get_carrier
from allhands.bench.training import StepData

SEED = 7


def brought(cell: BenchCase, rank: int, scale: int) -> Array:
    x = np.empty(cell.count_input(rank), get_carrier(cell.dtype))
    CaseData(cell, rank, SEED).fill(x, scale)
    return x


def numbers(cell: BenchCase, x: Array) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    if cell.dtype == "bfloat16":
        x = (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float64)


def result(cell: BenchCase, rank: int, scale: int) -> Array:
    """Compute the operation by definition, in float64."""
    all_of_them = [numbers(cell, brought(cell, one, scale)) for one in range(cell.ranks)]
    share = cell.elements // cell.ranks

    def block(one: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        before = sum(cell.count_block(one, to) for to in range(rank))
        return all_of_them[one][before : before + cell.count_block(one, rank)]

    mine = slice(rank * share, (rank + 1) * share)
    due = {
        "all_reduce": lambda: sum(all_of_them),
        "reduce_scatter": lambda: sum(all_of_them)[mine],
        "all_gather": lambda: np.concatenate(all_of_them),
        "all_to_all": lambda: np.concatenate([one[mine] for one in all_of_them]),
        "broadcast": lambda: all_of_them[0],
        "reduce": lambda: sum(all_of_them),
        "gather": lambda: np.concatenate(all_of_them),
        "scatter": lambda: all_of_them[0][mine],
        "sendrecv": lambda: all_of_them[1 - rank],
        "async_all_reduce": lambda: sum(all_of_them),
        "future_all_reduce": lambda: sum(all_of_them),
        "exchange": lambda: all_of_them[rank - 1],
        "scan": lambda: sum(all_of_them[: rank + 1]),
        "exscan": lambda: sum(all_of_them[:rank]),
        "all_gather_v": lambda: np.concatenate(all_of_them),
        "all_to_all_v": lambda: np.concatenate([block(one) for one in range(cell.ranks)]),
        "gather_v": lambda: np.concatenate(all_of_them),
        "scatter_v": lambda: block(0),
        "reduce_scatter_v": lambda: sum(block(one) for one in range(cell.ranks)),
        "all_gather_object": lambda: np.concatenate(all_of_them),
        "broadcast_object_list": lambda: all_of_them[0],
        "coalesced_all_reduce": lambda: sum(all_of_them),
        "in_flight_all_reduce": lambda: sum(all_of_them),
        "overlap_all_reduce": lambda: sum(all_of_them),
    }[cell.operation]()
    if cell.dtype == "bfloat16":
        return (due.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return due.astype(get_carrier(cell.dtype))


WITH_DATA = sorted(
    {*COLLECTIVES, *ASYNCHRONOUS, *COMPOSITE, *FORMS, "in_flight_all_reduce"} - {"barrier"}
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", WITH_DATA)
def test_the_result_by_definition_passes(operation: str, dtype: str) -> None:
    cell = BenchCase(operation, 3, 4000, dtype)
    for rank in cell.receivers[:2]:
        assert CaseData(cell, rank, SEED).find_error(result(cell, rank, 3), 3) is None


@pytest.mark.parametrize("operation", WITH_DATA)
def test_one_wrong_element_does_not_pass_wherever_it_is(operation: str) -> None:
    cell = BenchCase(operation, 2, (1 << 20) // BenchCase(operation, 2, 8).arrays)
    rank = cell.receivers[-1]
    for place in (0, 70_000, -1):  # more than is compared at once lies between
        got = result(cell, rank, 2)
        got[place] += 1
        said = CaseData(cell, rank, SEED).find_error(got, 2)
        assert said is not None
        assert f"element {place % got.size} of" in said


@pytest.mark.parametrize("operation", WITH_DATA)
def test_the_result_of_the_call_before_does_not_pass(operation: str) -> None:
    cell = BenchCase(operation, 2, 8)
    rank = cell.receivers[0]
    before = result(cell, rank, choose_scale(4))
    assert CaseData(cell, rank, SEED).find_error(before, choose_scale(5)) is not None


@pytest.mark.parametrize("operation", WITH_DATA)
def test_a_result_of_another_length_does_not_pass(operation: str) -> None:
    cell = BenchCase(operation, 2, 64)
    rank = cell.receivers[-1]
    due = result(cell, rank, 1)
    for got in (due[:-1], np.append(due, due[-1:])):
        said = CaseData(cell, rank, SEED).find_error(got, 1)
        assert said == f"{got.size} elements came, not {due.size}"


@pytest.mark.parametrize("operation", ["reduce", "gather"])
def test_who_gets_nothing_is_not_checked(operation: str) -> None:
    cell = BenchCase(operation, 2, 64)
    got = np.zeros(cell.output_elements or cell.elements, np.float32)
    assert CaseData(cell, 0, SEED).find_error(got, 1) is not None
    assert CaseData(cell, 1, SEED).find_error(got, 1) is None


def test_what_a_rank_brought_itself_is_not_the_result_of_an_all_reduce() -> None:
    cell = BenchCase("all_reduce", 2, 64)
    assert CaseData(cell, 0, SEED).find_error(brought(cell, 0, 1), 1) is not None


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_as_many_ranks_as_are_allowed_are_exact(dtype: str) -> None:
    ranks = min(max_ranks(dtype), 28)
    largest = np.array([9 * ranks])
    if dtype == "bfloat16":
        assert (largest.astype(np.float32).view(np.uint32) & 0xFFFF == 0).all()
    else:
        assert largest.astype(dtype).astype(np.int64) == largest


def test_sizes_are_what_each_rank_brings_with_equal_shares_for_all() -> None:
    assert (
        BenchCase("all_gather", 4, 1024).elements,
        BenchCase("all_gather", 4, 1024).output_elements,
    ) == (
        256,
        1024,
    )
    assert BenchCase("reduce_scatter", 4, 1024).output_elements == 64
    assert BenchCase("all_to_all", 4, 8).elements == 4
    assert BenchCase("all_reduce", 4, 1, "float64").elements == 1


def test_arrays_of_uneven_sizes_are_never_empty_and_at_most_the_bytes() -> None:
    for ranks in range(1, 6):
        for nbytes in (1, 8, 1000):
            cell = BenchCase("all_gather_v", ranks, nbytes)
            counts = [cell.count_input(rank) for rank in range(ranks)]
            assert counts == sorted(counts)
            assert counts[0] >= 1
            assert counts[-1] == cell.elements
            exchange = BenchCase("all_to_all_v", ranks, nbytes)
            for rank in range(ranks):
                blocks = [exchange.count_block(rank, to) for to in range(ranks)]
                assert min(blocks) >= 1
                assert sum(blocks) == exchange.count_input(rank) <= exchange.elements


def test_an_operation_with_forms_is_measured_in_all_of_them() -> None:
    cell = BenchCase("coalesced_all_reduce", 2, 1024)
    assert [one.form for one in cell.forms] == ["coalescing", "one_by_one", "packed"]
    assert cell.elements == 100 * 256
    assert cell.is_rewritten
    assert cell.forms[1].forms == (cell.forms[1],)
    assert BenchCase("all_reduce", 2, 8).forms == (BenchCase("all_reduce", 2, 8),)


def test_a_matrix_product_alone_has_no_result_to_check() -> None:
    cells = BenchCase("overlap_all_reduce", 2, 8).forms
    assert [len(one.receivers) for one in cells] == [2, 2, 0]


def test_a_table_has_one_barrier_and_no_partner_for_a_single_rank() -> None:
    cells = list_cases(["sendrecv", "barrier", "broadcast"], 1, [8, 16], ["float32", "int8"])
    assert [cell.operation for cell in cells] == ["barrier"] + ["broadcast"] * 4


# ---------------------------------------------------------------- a step of training

STEP = BenchCase("ddp_step", 3, 1 << 20)


def gradients(scale: int, seed: int = SEED) -> Array:
    """Find the gradients from the loss alone, linear in each layer's weights."""
    width = STEP.width
    layers = [weights.astype(np.float64) for weights in training.draw_weights(STEP, seed)]
    x = np.zeros((BATCH, width))
    for rank in range(STEP.ranks):
        x += brought_to_step(rank, scale).reshape(BATCH, width) / STEP.ranks
    due = np.empty((STEP.layers, width, width))
    for at in range(STEP.layers):
        before = np.linalg.multi_dot([x, *(one.T for one in layers[:at])]) if at else x
        after = np.eye(width)
        for one in layers[at + 1 :]:
            after = one @ after
        # The loss is the sum of before @ W.T @ after.T: of each weight, what stands beside it.
        due[at] = np.outer(after.sum(0), before.sum(0))
    return due.astype(np.float32).reshape(-1)


def brought_to_step(rank: int, scale: int) -> Array:
    x = np.empty(STEP.elements, np.float32)
    StepData(STEP, rank, SEED).fill(x, scale)
    return x


@pytest.mark.parametrize("rank", range(2))
def test_the_mean_of_gradients_passes(rank: int) -> None:
    assert StepData(STEP, rank, SEED).find_error(gradients(2), 2) is None


def test_gradients_that_were_not_averaged_or_are_of_the_call_before_do_not_pass() -> None:
    check = StepData(STEP, 0, SEED)
    for got in (gradients(2) * STEP.ranks, gradients(1), np.full(STEP.output_elements, np.nan)):
        said = check.find_error(got.astype(np.float32), 2)
        assert said is not None
        assert "a gradient of layer 0 of 4" in said


def test_a_gradient_that_is_wrong_alone_does_not_pass() -> None:
    got = gradients(1)
    got[-1] += np.abs(got[-(STEP.width**2) :]).max() / 1000
    said = StepData(STEP, 0, SEED).find_error(got, 1)
    assert said is not None
    assert "layer 3 of 4" in said


@pytest.mark.parametrize(
    ("nbytes", "width", "layers"),
    [(8, 64, 1), (64 << 10, 64, 4), (1 << 20, 256, 4), (16 << 20, 1024, 4), (100 << 20, 1024, 25)],
)
def test_a_model_has_the_gradients_that_were_asked_for(
    nbytes: int, width: int, layers: int
) -> None:
    cell = BenchCase("ddp_step", 2, nbytes)
    assert (cell.width, cell.layers) == (width, layers)
    assert cell.output_elements * 4 == max(nbytes, 64 * 64 * 4)
