"""v-variants and calls on objects over shared memory: right, and by the core at once."""

from typing import Any

import pytest

from programs import vector_calls as program
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
def test_plain_arrays_go_to_the_core_at_once_and_others_are_checked(
    job: Job, size: int, options: dict[str, bool]
) -> None:
    check_faults(job(size, program.call_all, options))


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_whose_calls_are_checked_fit_those_whose_are_not(job: Job, size: int) -> None:
    check_faults(job(size, program.mix_ways))


@SIZES
@OPTIONS
def test_objects_arrive(job: Job, size: int, options: dict[str, bool]) -> None:
    check_faults(job(size, program.exchange_objects, options))


def test_calls_that_differ_are_refused_on_all_ranks_and_the_next_succeeds(job: Job) -> None:
    ranks = job(3, program.differ)
    for rank in ranks:
        *told, _ = collect(rank, "refused")
        assert [one["name"] for one in told] == ["dtype", "root", "call", "object", "count"]
        for one in told:
            assert one["error"] == "CollectiveMismatch", one
            assert one["right"], one
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


def test_what_is_no_array_is_refused_before_it_is_read(job: Job) -> None:
    ranks = job(2, program.send_what_is_no_array)
    *told, _ = collect(ranks[1], "refused")
    errors = {one["name"]: one["error"] for one in told}
    assert errors.pop("good") is None
    assert set(errors.values()) == {"ValueError"}, told
    assert len(errors) == 9
    ranks[0].expect("done")
    finished(ranks)
