"""Rows of `allhands top`, from statuses made by hand."""

from dataclasses import replace

import pytest

from allhands.coordinator.stalls import Stall, describe_stall, find_stall
from allhands.coordinator.status import JobStatus, MemberStatus
from allhands.runtime.sections import SectionPosition
from allhands.top import view
from allhands.top.rates import CallRates
from allhands_proto.statuses import FailureStatus, GroupStatus, LatenessStatus, OperationStatus

WORLD = GroupStatus("world", (0, 1, 2))


def make_member(
    rank: int, operation: str, sequence: int, elapsed: float, late: float = 0.0
) -> MemberStatus:
    progress = OperationStatus("world", operation, sequence, sequence - bool(operation), elapsed)
    lateness = (LatenessStatus("world", 64, late, late, 1),)
    member = MemberStatus(rank, f"m{rank}", "a", 10 + rank, "a:1", "", "joined", "", 0.1, ())
    return replace(member, operations=(progress,), lateness=lateness)


def make_job(*members: MemberStatus, name: str = "job") -> JobStatus:
    return JobStatus(name, "running", 1, 3, members, (WORLD,), 10.0, 0, "i")


WAITING = make_job(
    make_member(0, "all_reduce", 8, 12.0),
    make_member(1, "", 7, 12.5, late=0.02),
    make_member(2, "all_reduce", 8, 11.0),
)


def test_a_stall_names_the_rank_that_misses_and_how_long_the_first_has_waited() -> None:
    stall = find_stall(WAITING.members, WORLD)
    assert stall == Stall("world", "all_reduce", 8, 12.0, (1,))
    said = "rank 1 missing for 12.0 s in all_reduce #8 of group world"
    assert describe_stall(stall) == said
    [job] = view.list_jobs([WAITING], CallRates())
    assert (job.cells[-1], job.tone) == (said, view.Tone.WARNING)
    assert [row.cells[3] for row in view.list_ranks(WAITING, view.Order.RANK)] == [
        "joined",
        "awaited",
        "joined",
    ]


def test_a_rank_that_never_joined_is_missing_too() -> None:
    job = make_job(make_member(0, "barrier", 1, 3.0))
    stall = find_stall(job.members, WORLD)
    assert stall is not None
    assert stall.missing == (1, 2)


@pytest.mark.parametrize(
    "job",
    [
        make_job(*(make_member(rank, "all_reduce", 8, 50.0) for rank in range(3))),
        make_job(make_member(0, "all_reduce", 9, 0.2), make_member(1, "", 4, 0.1)),
        make_job(make_member(0, "", 9, 60.0), make_member(1, "", 8, 60.0)),
    ],
    ids=["all are in it", "not for long", "none is in it"],
)
def test_no_stall_where_nobody_is_awaited_for_long(job: JobStatus) -> None:
    assert find_stall(job.members, WORLD) is None


def test_jobs_with_members_come_before_ended_ones() -> None:
    running, ended = replace(WAITING, job="z"), replace(WAITING, job="a", state="ended", ended=5.0)
    rows = view.list_jobs([ended, running], CallRates())
    assert [row.key for row in rows] == ["z", "a"]


def test_the_first_failure_of_a_job_is_what_is_shown() -> None:
    failed = replace(WAITING, failures=(FailureStatus(2, "dead", "rank 2 died\nat x", 1.0),))
    [row] = view.list_jobs([failed], CallRates())
    assert (row.cells[-1], row.tone) == ("rank 2 died", view.Tone.FAILURE)


def test_ranks_come_in_the_order_that_was_asked_for() -> None:
    def order(by: view.Order) -> list[str]:
        return [row.key for row in view.list_ranks(WAITING, by)]

    assert order(view.Order.RANK) == ["0", "1", "2"]
    assert order(view.Order.SINCE) == ["0", "2", "1"]
    assert order(view.Order.LATE) == ["1", "0", "2"]
    assert view.Order.LATE.follow() is view.Order.RANK


def test_who_is_in_no_call_is_shown_with_its_section() -> None:
    load = SectionPosition("load\x1b", 2.0)
    job = make_job(*(replace(member, section=load) for member in WAITING.members[:2]))
    rows = view.list_ranks(job, view.Order.RANK)
    assert [row.cells[-1] for row in rows] == ["all_reduce", r"section load\x1b"]


def test_what_jobs_bring_of_text_is_escaped() -> None:
    told = make_job(make_member(0, "", 1, 1.0), name="a\x1b[2Jb")
    [row] = view.list_jobs([told], CallRates())
    assert row.cells[0] == "a\\x1b[2Jb"


@pytest.mark.parametrize(
    ("rate", "said"),
    [(None, "-"), (0.0, "0"), (0.25, "0.2"), (99.6, "100"), (12_345.0, "12k"), (2.5e6, "2.5M")],
)
def test_rates_take_five_characters(rate: float | None, said: str) -> None:
    assert view.format_rate(rate) == said


def test_a_history_is_drawn_from_zero_to_its_highest_rate() -> None:
    assert view.draw_history([0.0, 7.0]) == "▁█"
    assert view.draw_history([0.0, 0.0]) == "▁▁"
    assert len(view.draw_history([1.0] * 60)) == 12
    assert view.draw_history([]) == ""
