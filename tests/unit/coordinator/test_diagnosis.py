"""Reports of ranks to the coordinator, and the diagnosis of a stalled job."""

from dataclasses import replace

import pytest

from allhands.coordinator import report_decoder, report_encoder
from allhands.coordinator.analysis import RankReport, diagnose
from allhands.coordinator.diagnosis import describe_waits
from allhands.coordinator.status import JobStatus, MemberStatus
from allhands.recorder.record import OperationRecord
from allhands_proto.statuses import (
    GroupStatus,
    GroupWaits,
    OperationStatus,
    RankWaits,
    WaitPeriod,
)
from support.operation_records import SECOND, record

# ---------------------------------------------------------------- reports


def test_a_report_comes_back_as_it_was() -> None:
    records = [record(1, waits_for=(3, 4), outcome="running", finished=0), record(2, label="x")]
    found = report_decoder.decode(report_encoder.encode(records, [], "the stack", 1 << 20))
    assert found is not None
    assert (found.operations, found.stack, found.is_cut) == (tuple(records), "the stack", False)


@pytest.mark.parametrize("nbytes", [200, 1000, 5000])
def test_a_report_fits_and_leaves_out_the_oldest(nbytes: int) -> None:
    records = [record(number) for number in range(1, 101)]
    data = report_encoder.encode(records, [], "", nbytes)
    assert len(data) <= nbytes
    found = report_decoder.decode(data)
    assert found is not None
    assert found.is_cut
    numbers = [one.sequence for one in found.operations]
    assert numbers == list(range(101 - len(numbers), 101))


def test_a_stack_that_leaves_no_room_is_left_out() -> None:
    data = report_encoder.encode([record(1)], [], "s" * 1000, 400)
    found = report_decoder.decode(data)
    assert found is not None
    assert (found.stack, found.is_cut, len(found.operations)) == ("", True, 1)


def test_what_is_no_report_is_told_apart() -> None:
    assert report_decoder.decode(b"\xff\xff\xff") is None


def test_a_report_is_cut_into_parts_and_an_empty_one_has_one() -> None:
    data = bytes(report_encoder.PART_BYTES + 1)
    parts = report_encoder.split_report(7, data)
    assert [(part.id, len(part.data), part.is_last) for part in parts] == [
        (7, report_encoder.PART_BYTES, False),
        (7, 1, True),
    ]
    assert [(part.data, part.is_last) for part in report_encoder.split_report(7, b"")] == [
        (b"", True)
    ]


# ---------------------------------------------------------------- diagnosis


def member(rank: int, *operations: OperationStatus) -> MemberStatus:
    return MemberStatus(
        rank, f"m{rank}", "a", 100 + rank, "a:1", "", "joined", "", 0.5, tuple(operations)
    )


def inside(sequence: int, operation: str = "all_reduce", elapsed: float = 1.0) -> OperationStatus:
    return OperationStatus("world", operation, sequence, sequence - 1, elapsed)


def outside(sequence: int, elapsed: float = 2.0) -> OperationStatus:
    return OperationStatus("world", "", sequence, sequence, elapsed)


def job(*members: MemberStatus) -> JobStatus:
    ranks = tuple(one.rank for one in members)
    return JobStatus(
        "j", "running", 1, len(ranks), members, (GroupStatus("world", ranks),), 5.0, 0, ""
    )


def report(progress: OperationStatus, *operations: OperationRecord, stack: str = "") -> RankReport:
    return RankReport(10.0, (progress,), operations, stack, False)


def test_who_is_behind_is_named_with_where_the_others_are() -> None:
    running = record(7, created=6 * SECOND, finished=0, outcome="running", waits_for=(0,))
    reports = {
        0: report(outside(6, 3.0), record(6), stack='File "train.py", line 3'),
        1: report(inside(7), running),
        2: report(inside(7, "barrier")),
    }
    found = diagnose(job(*(member(rank) for rank in range(4))), reports, {3: "it did not answer"})
    [group] = found.groups
    assert [(one.sequence, one.operation, one.ranks) for one in group.positions] == [
        (7, "all_reduce", (1,)),
        (7, "barrier", (2,)),
        (6, "", (0,)),
        (0, "", (3,)),
    ]
    assert group.behind == (0, 3)
    idle, waiting, other, silent = found.ranks
    assert (idle.idle, idle.waits) == (3.0, ())
    assert idle.last == "all_reduce #6 of group world at train.py:31 in step"
    [wait] = waiting.waits
    assert (wait.seconds, wait.waits_for, wait.source) == (4.0, (0,), "train.py:31 in step")
    assert [one.operation for one in other.waits] == ["barrier"], "told by its progress alone"
    assert silent.absence == "it did not answer"
    shown = str(found)
    assert (
        "group world: rank 1 is in all_reduce #7, rank 2 is in barrier #7, rank 0 is in none, "
        "after #6, rank 3 is in none, and has begun none; behind: ranks 0,3" in shown
    )
    assert "rank 3 did not report: it did not answer" in shown
    assert 'File "train.py", line 3' in shown


def test_who_does_not_report_is_where_it_last_said() -> None:
    found = diagnose(job(member(0, inside(4)), member(1, outside(3))), {}, {0: "x", 1: "x"})
    assert [one.ranks for one in found.groups[0].positions] == [(0,), (1,)]
    assert [wait.operation for wait in found.ranks[0].waits] == ["all_reduce"]


def test_a_wait_is_as_old_as_the_coordinators_clock_says() -> None:
    """A report may be seconds old: the coordinator waits for those of other ranks."""
    running = record(7, created=6 * SECOND, finished=0, outcome="running")
    asked = replace(member(0), clock_offset=100.0)
    found = diagnose(replace(job(asked), clock=112.0), {0: report(inside(7), running)}, {})
    [wait] = found.ranks[0].waits
    assert (wait.seconds, wait.age) == (4.0, 6.0)


def test_the_call_of_a_failed_rank_is_as_old_as_the_request() -> None:
    """Its last report tells its position at its first failure, and may be made long after."""
    failed = record(7, created=6 * SECOND, finished=8 * SECOND, outcome="failed")
    gone = replace(member(0), state="left", gone=5.0)
    found = diagnose(job(gone), {0: report(inside(7, elapsed=2.0), failed)}, {})
    [wait] = found.ranks[0].waits
    assert (wait.seconds, wait.age) == (2.0, 9.0)


def test_a_lost_ranks_wait_goes_on_ageing() -> None:
    lost = replace(member(0, inside(4, elapsed=2.0)), state="lost", gone=5.0)
    [wait] = diagnose(job(lost), {}, {0: "it is lost"}).ranks[0].waits
    assert (wait.seconds, wait.age) == (2.0, 7.0)


def test_who_was_waited_for_of_late_is_named_with_how_long() -> None:
    periods = tuple(
        WaitPeriod(ago, 60.0, 300, 20.0, 0.4, (RankWaits(5, 206, 15.5), RankWaits(2, 9, 0.2)))
        for ago in (600.0, 60.0)
    )
    waits = GroupWaits("world", 9000, (RankWaits(5, 4000, 300.0, 1.0),), periods)
    assert describe_waits(waits) == (
        "group world, over the last 10 m 00 s: rank 5 was last to begin 412 of 600 calls; "
        "the others waited 31.0 s for it"
    )
    found = diagnose(job(member(0, outside(4))), {}, {}, [waits])
    assert describe_waits(waits) in str(found)
    trifle = replace(periods[0], late=(RankWaits(5, 300, 0.0009),))
    assert describe_waits(replace(waits, periods=(trifle,))) == ""
    assert describe_waits(replace(waits, periods=())) == ""


def test_nobody_is_behind_where_all_are_at_one_call() -> None:
    reports = {rank: report(inside(5)) for rank in range(12)}
    found = diagnose(job(*(member(rank) for rank in range(12))), reports, {})
    assert found.groups[0].behind == ()
    assert "group world: 12 ranks (0-11) are in all_reduce #5" in str(found)


def test_what_comes_from_elsewhere_does_not_steer_a_terminal() -> None:
    evil = record(7, finished=0, outcome="running", label="\x1b[2J", signature="[red]x[/red]")
    shown = str(diagnose(job(member(0)), {0: report(inside(7), evil)}, {}))
    assert "\x1b" not in shown
    assert "[red]x[/red]" in shown
