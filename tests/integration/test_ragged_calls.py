"""scatter_v and reduce_scatter_v over shared memory: right, and by the core at once."""

from typing import Any

import pytest

from programs import ragged_calls as program
from support.ranks.processes import Job, Process

SIZES = pytest.mark.parametrize("size", [1, 2, 3, 4])
OPTIONS = pytest.mark.parametrize("options", [{}, {"retryable": True}, {"verify": True}], ids=str)


def finished(ranks: list[Process]) -> None:
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)


def check_faults(ranks: list[Process]) -> None:
    for rank in ranks:
        assert rank.expect("done")["faults"] == []
    finished(ranks)


def collect(rank: Process, what: str) -> list[dict[str, Any]]:
    """Return the events of a rank up to its last."""
    found = []
    while (one := rank.expect(what, "done"))["what"] == what:
        found.append(one)
    return [*found, one]


@SIZES
@OPTIONS
def test_scattered_arrays_go_to_the_core_at_once_and_others_are_checked(
    job: Job, size: int, options: dict[str, bool]
) -> None:
    check_faults(job(size, program.scatter_all, options))


@SIZES
@OPTIONS
def test_blocks_of_unequal_shapes_are_reduced_by_the_core_at_once(
    job: Job, size: int, options: dict[str, bool]
) -> None:
    ranks = job(size, program.reduce_all, options)
    for rank in ranks:
        done = rank.expect("done")
        assert done["faults"] == []
        if size > 1 and not options:
            assert {"slots", "swap", "direct"} <= set(done["variants"])
    finished(ranks)


@SIZES
def test_operations_that_the_core_does_not_know_are_checked(job: Job, size: int) -> None:
    check_faults(job(size, program.reduce_by_functions))


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_whose_calls_are_checked_fit_those_whose_are_not(job: Job, size: int) -> None:
    check_faults(job(size, program.mix_ways))


def test_a_root_of_small_arrays_waits_for_nobody_once_all_have_called_so(job: Job) -> None:
    ranks = job(3, program.scatter_ahead)
    ranks[0].expect("ahead")
    for rank in ranks:
        rank.say()
    finished(ranks)


@pytest.mark.parametrize("size", [2, 3])
def test_calls_that_differ_are_refused_on_all_ranks_and_the_next_succeeds(
    job: Job, size: int
) -> None:
    ranks = job(size, program.differ)
    for rank in ranks:
        *told, _ = collect(rank, "refused")
        assert len(told) == 9
        for one in told:
            assert one["error"] == "CollectiveMismatch", one
            assert one["right"], one
        texts = {one["name"]: one["text"] for one in told}
        assert "reduce_scatter_v(float64[3;4" in texts["sizes"]
        assert "reduce_scatter_v(float64[4;3" in texts["sizes"]
        for name, parts in {"shapes": ("[2,3]", "[3,2]"), "operation": ("MAX", "SUM")}.items():
            assert all(part in texts[name] for part in parts), texts[name]
    finished(ranks)


def test_wrong_arguments_are_refused_by_the_same_words_and_nothing_is_sent(job: Job) -> None:
    ranks = job(2, program.refuse_arguments)
    for rank in ranks:
        *said, done = collect(rank, "said")
        told: dict[str, dict[str, tuple[str, str]]] = {"checked": {}, "direct": {}}
        for one in said:
            told[one["phase"]][one["name"]] = one["error"], one["text"]
        assert told["checked"] == told["direct"]
        assert all(error for error, _ in told["direct"].values()), told
        assert done["sequence"] == 2  # the barriers
    finished(ranks)


def test_what_is_no_array_with_a_dtype_is_refused_before_it_is_read(job: Job) -> None:
    ranks = job(2, program.send_what_is_no_typed_array)
    told = []
    while (one := ranks[1].expect("refused", "came"))["what"] == "refused":
        told.append(one)
    assert one["values"] == [0, 1, 2]
    assert ranks[1].expect("refused")["error"] is None  # the good one
    assert {one["error"] for one in told} <= {"ValueError", "UnicodeDecodeError"}, told
    assert len(told) == 13
    ranks[0].expect("done")
    ranks[1].expect("done")
    finished(ranks)
