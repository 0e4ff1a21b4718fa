"""Collectives on lists of arrays over shared memory: right, and by the core at once."""

import pytest

from programs import list_calls as program
from support.ranks.processes import Job, Process

SIZES = pytest.mark.parametrize("size", [2, 3, 4])


def finished(ranks: list[Process]) -> None:
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)


def check_faults(ranks: list[Process]) -> None:
    for rank in ranks:
        assert rank.expect("done")["faults"] == []
    finished(ranks)


@SIZES
@pytest.mark.parametrize("options", [{}, {"retryable": True}, {"verify": True}], ids=str)
def test_plain_arrays_go_to_the_core_at_once_and_others_are_checked(
    job: Job, size: int, options: dict[str, bool]
) -> None:
    check_faults(job(size, program.call_on_lists, options))


@SIZES
def test_arrays_may_have_any_shape_and_their_calls_a_label(job: Job, size: int) -> None:
    check_faults(job(size, program.call_on_other_shapes))


@SIZES
def test_ranks_whose_calls_are_checked_fit_those_whose_are_not(job: Job, size: int) -> None:
    check_faults(job(size, program.mix_ways))


@SIZES
def test_arrays_that_share_memory_are_checked(job: Job, size: int) -> None:
    check_faults(job(size, program.share_memory))


def test_wrong_arguments_are_refused_by_the_same_words_and_nothing_is_sent(job: Job) -> None:
    ranks = job(2, program.refuse_arguments)
    for rank in ranks:
        told: dict[str, dict[str, tuple[str, str]]] = {"checked": {}, "direct": {}}
        while (one := rank.expect("said", "done"))["what"] == "said":
            told[one["phase"]][one["name"]] = one["error"], one["text"]
        assert told["checked"] == told["direct"]
        assert all(error for error, _ in told["direct"].values()), told
        assert one["sequence"] == 2  # the barriers
    finished(ranks)


def test_a_list_may_change_while_a_call_goes_on_in_its_arrays(job: Job) -> None:
    ranks = job(2, program.change_lists)
    for _ in range(2):
        ranks[0].expect("emptied")
        ranks[1].say()
        ended = [rank.expect("ended") for rank in ranks]
        assert [one["right"] for one in ended] == [True, True]
        assert ended[0]["alive"] == [True, True]
    finished(ranks)
