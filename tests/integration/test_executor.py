"""Executors on worlds of real ranks: results, errors, losses; and joblib over them."""

import pytest

from programs import executors as program
from support.ranks.processes import Job


@pytest.mark.parametrize(("size", "root"), [(1, 0), (2, 0), (4, 2)])
def test_calls_run_on_the_other_ranks_and_the_world_goes_on(job: Job, size: int, root: int) -> None:
    ranks = job(size, program.submit_much, root)
    if size > 1:
        refused = [ranks[root].expect("refused")["text"] for _ in range(3)]
        assert "builtins:len is none of the functions of the executor" in refused[0]
        assert "does not travel" in refused[1]
        assert "has been shut down" in refused[2]
    for rank in ranks:
        rank.expect("done")
        assert rank.ended() == 0, "".join(rank.errors)


def test_what_has_not_begun_can_be_cancelled(job: Job) -> None:
    ranks = job(3, program.hold_all)
    ranks[0].expect("submitted")
    for rank in ranks[1:]:
        assert rank.expect("held")["number"] < 2
    ranks[0].say()
    assert ranks[0].expect("ended")["cancelled"] == [False, False, True, True]
    for rank in ranks[1:]:
        rank.say()
    ranks[0].say()
    assert ranks[0].expect("results")["ranks"] == [1, 2]
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)


def test_the_loss_of_a_rank_is_told_by_the_futures(job: Job) -> None:
    ranks = job(2, program.lose_one)
    broken = ranks[0].expect("broken")
    assert broken["is_broken"], broken
    assert "rank 1" in broken["text"]
    assert "rank 1" in ranks[0].expect("refused")["text"]


def test_joblib_runs_its_batches_on_the_ranks(job: Job) -> None:
    ranks = job(3, program.run_joblib)
    assert ranks[0].expect("failed")["args"] == ["bad", 3]
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)


def test_joblib_says_what_it_needs(job: Job) -> None:
    ranks = job(2, program.run_joblib_without_pickle)
    assert "allow_pickle=True" in ranks[0].expect("refused")["text"]
    for rank in ranks:
        assert "allow_pickle=True" in rank.expect("refused")["text"]
        assert rank.ended() == 0, "".join(rank.errors)
