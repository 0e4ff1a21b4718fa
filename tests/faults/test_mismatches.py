"""Mismatched calls: every rank gets a table at once, and unchanged outputs."""

import pytest

from programs import mismatches
from support.ranks.processes import Job


@pytest.mark.parametrize("backend", ["auto", "socket"])
@pytest.mark.parametrize("async_op", [False, True])
def test_every_rank_gets_the_table_soon_and_no_output_is_touched(job: Job, async_op: bool) -> None:
    ranks = job(3, mismatches.call_differently, async_op)
    for n in (6, 40_000, 400_000):
        for kind in mismatches.KINDS:
            told = [rank.expect("refused") for rank in ranks]
            assert [(one["kind"], one["n"]) for one in told] == [(kind, n)] * 3
            assert [one["kept"] for one in told] == [True] * 3, told
            table = told[0]["table"]
            assert [one["table"] for one in told] == [table] * 3
            assert sorted(table) == ["0", "1", "2"]
            assert table["0"] != table["1"]
            print(f"{kind:20} {n:8} {max(one['seconds'] for one in told):.3f} s")
            for rank in ranks:
                assert rank.expect("next")["right"]
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_a_rank_that_never_comes_touches_no_output_and_the_error_says_so(job: Job) -> None:
    ranks = job(3, mismatches.miss_a_rank)
    for _ in range(3 * 2 * len(mismatches.CALLS)):
        for at in (0, 2):
            told = ranks[at].expect("said")
            assert told["error"] == "CollectiveTimeout", told
            assert told["intact"], told
            assert told["kept"], told
            assert told["text"].endswith("outputs are untouched") or at == 0, told
            ranks[1].say()
        for rank in ranks:
            assert rank.expect("next")["right"]
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_who_is_not_there_is_not_waited_for_and_says_what_it_does(job: Job, backend: str) -> None:
    ranks = job(3, mismatches.differ_without_a_rank)
    told = [ranks[at].expect("refused")["table"] for at in (0, 2)]
    assert told[0] == told[1]
    assert told[0]["1"] == "has not called it: is outside any call since #1"
    ranks[1].say()
    late = ranks[1].expect("late")
    assert late["error"] == "CollectiveMismatch", late
    assert late["intact"]
    for row in (told[0]["0"], told[0]["2"]):
        assert row in late["text"]
    for rank in ranks:
        assert rank.expect("next")["right"]
        assert rank.ended() == 0, "".join(rank.errors)


@pytest.mark.parametrize("backend", ["auto", "socket"])
@pytest.mark.parametrize("how", ["leave", "exit"])
def test_who_comes_when_those_of_a_mismatch_are_gone_is_told_their_calls(
    job: Job, how: str
) -> None:
    ranks = job(3, mismatches.end_after_a_mismatch, how)
    rows = [f"rank {rank}: all_reduce(float64[{count}], SUM)" for rank, count in ((0, 3), (1, 4))]
    for rank in ranks[:2]:
        assert rank.expect("refused")["error"] == "CollectiveMismatch"
    for what in ("message", "message", "other group", "next"):
        if what == "next":
            told = ranks[2].expect("call")
            assert told["error"] == "CollectiveMismatch", told
            assert all(row in told["text"] for row in rows), told
            assert "rank 2 (this one): all_reduce(float64[3], SUM)" in told["text"]
        told = ranks[2].expect(what)
        assert told["error"] == "PeerFailed", told
        assert "before, the ranks made different calls as #3 of group 'world'" in told["text"]
        assert all(row in told["text"] for row in rows), told


@pytest.mark.parametrize("backend", ["auto", "socket"])
@pytest.mark.parametrize("how", ["leave", "exit"])
def test_who_goes_on_after_a_mismatch_is_told_it_again_where_the_others_do_not(
    job: Job, how: str
) -> None:
    ranks = job(3, mismatches.go_on_after_a_mismatch, how)
    for rank in ranks:
        assert rank.expect("refused")["error"] == "CollectiveMismatch"
    told = ranks[0].expect("next")
    assert told["error"] == "PeerFailed", told
    assert "rank 0 (this one): broadcast(float64[3], root 0)" in told["text"]
    assert "rank 1: broadcast(float64[4], root 0)" in told["text"]


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_a_mismatch_before_calls_that_went_well_is_no_reason_of_a_departure(job: Job) -> None:
    ranks = job(2, mismatches.end_after_all_went_well)
    for rank in ranks:
        assert rank.expect("refused")["error"] == "CollectiveMismatch"
    told = ranks[0].expect("next")
    assert told["error"] == "PeerFailed", told
    assert "different calls" not in told["text"]


@pytest.mark.parametrize("backend", ["socket"])  # shared memory waits for all before the first call
@pytest.mark.parametrize("odd", [0, 1])
def test_who_makes_a_group_after_its_first_call_has_failed_is_told(
    job: Job, backend: str, odd: int
) -> None:
    ranks = job(3, mismatches.make_a_group_late, odd)
    for rank in ranks:
        if rank is ranks[2]:
            rank.say()
        told = rank.expect("refused")
        assert told["error"] == "CollectiveMismatch", told
        assert "rank 0" in told["text"]
        assert "rank 1" in told["text"]
    for rank in ranks:
        assert rank.expect("next")["right"]
        assert rank.ended() == 0, "".join(rank.errors)


@pytest.mark.parametrize("backend", ["auto", "socket"])
@pytest.mark.parametrize("n", [10, 40_000])
@pytest.mark.parametrize("how", ["now", "later"])
def test_ranks_that_bring_as_many_elements_in_other_shapes_are_told(
    job: Job, how: str, n: int
) -> None:
    ranks = job(3, mismatches.bring_other_shapes, how == "later", n)
    for name, (_, row) in mismatches.SHAPES.items():
        for _ in range(3):
            told = [rank.expect("told") for rank in ranks]
            assert [one["name"] for one in told] == [name] * 3
            table = told[0]["table"]
            assert table != "ended well", told
            assert [one["table"] for one in told] == [table] * 3
            for rank in range(3):
                shape = ",".join(map(str, told[0]["shapes"][rank == 2]))
                assert table[str(rank)].startswith(row.format(shape, whole=n)), table
            assert all(one["kept"] and one["right"] for one in told), told
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)
