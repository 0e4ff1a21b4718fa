"""Tables of a job's status for people."""

from dataclasses import replace

import pytest

from allhands.cli.documents import make_jobs_fields
from allhands.coordinator.status import JobStatus, MemberStatus, describe_group, describe_jobs
from allhands.coordinator.tables import render_plain
from allhands_proto.statuses import FailureStatus, GroupStatus, LatenessStatus, OperationStatus


def _member(rank: int, *operations: OperationStatus, label: str = "") -> MemberStatus:
    return MemberStatus(
        rank=rank,
        member_id=f"m{rank}",
        host="node-a",
        pid=4000 + rank,
        address=f"10.0.0.1:{5000 + rank}",
        label=label,
        state="joined",
        reason="",
        last_heartbeat=0.25,
        operations=operations,
    )


def _job(*members: MemberStatus, groups: tuple[GroupStatus, ...] = ()) -> JobStatus:
    return JobStatus(
        job="digits",
        state="running",
        epoch=3,
        world_size=4,
        members=members,
        groups=groups,
        heartbeat_window=5.0,
        keys=1,
        incarnation="i",
    )


def _row(text: str, start: str) -> list[str]:
    """The cells of the first line with the prefix `start`; cells stand two spaces apart."""
    line = next(line for line in text.splitlines() if line.lstrip().startswith(start))
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_the_text_of_a_job_is_its_table() -> None:
    job = _job(_member(0))
    assert str(job) == render_plain(describe_jobs([job]))


def test_the_headline_names_state_epoch_and_world_size() -> None:
    first = str(_job(_member(0))).splitlines()[0]
    assert first == "job digits: running, epoch 3, world size 4, 1 joined, 1 key"


def test_a_rank_that_others_wait_for_is_named_above_the_table() -> None:
    waiting = _member(0, OperationStatus("world", "barrier", 9, 8, 12.0))
    missing = _member(1, OperationStatus("world", "", 8, 8, 12.5))
    lines = str(_job(waiting, missing, groups=(GroupStatus("world", (0, 1)),))).splitlines()
    assert lines[1] == "rank 1 missing for 12.0 s in barrier #9 of group world"
    in_time = _member(0, OperationStatus("world", "barrier", 9, 8, 0.5))
    assert "missing" not in str(_job(in_time, missing, groups=(GroupStatus("world", (0, 1)),)))


def test_a_row_says_who_a_member_is_and_what_it_does_since_when() -> None:
    job = _job(_member(2, OperationStatus("world", "all_reduce", 17, 16, 12.04)))
    doing = ["joined", "0.2 s ago", "world", "all_reduce", "17", "12.0 s", "-"]
    assert _row(str(job), "2") == ["2", "node-a", *doing]
    wide = render_plain(describe_jobs([job]), is_wide=True)
    assert _row(wide, "2") == ["2", "node-a", "4002", "10.0.0.1:5002", *doing]


def test_a_member_in_two_operations_has_two_rows() -> None:
    text = str(
        _job(
            _member(
                0,
                OperationStatus("world", "all_reduce", 17, 16, 1.0),
                OperationStatus("dp", "broadcast", 3, 2, 2.0),
            )
        )
    )
    assert _row(text, "0")[-5:] == ["world", "all_reduce", "17", "1.0 s", "-"]
    assert _row(text, "dp") == ["dp", "broadcast", "3", "2.0 s", "-"]


def test_a_member_outside_any_operation_shows_where_it_was_last() -> None:
    ended = OperationStatus("world", "", 17, 17, 90.0), OperationStatus("dp", "", 4, 4, 75.0)
    assert _row(str(_job(_member(0, *ended))), "0")[-5:] == ["dp", "-", "4", "1 m 15 s", "-"]


def test_a_member_that_made_no_call_shows_no_operation() -> None:
    assert _row(str(_job(_member(0))), "0")[-5:] == ["-", "-", "-", "-", "-"]


@pytest.mark.parametrize(
    ("median", "shown"),
    [
        (0.0, "0 us"),
        (0.00012, "120 us"),
        (0.0501, "50.1 ms"),
        (0.9996, "1.0 s"),
        (75.0, "1 m 15 s"),
    ],
)
def test_a_row_says_how_late_a_member_is_in_that_group(median: float, shown: str) -> None:
    late = (LatenessStatus("dp", 20, 9.0, 9.0, 0), LatenessStatus("world", 20, median, 9.0, 20))
    member = replace(_member(0, OperationStatus("world", "", 4, 4, 1.0)), lateness=late)
    assert _row(str(_job(member)), "0")[-1] == shown


def test_why_a_member_is_gone_is_said_below_the_table() -> None:
    lost = replace(_member(1), state="lost", reason="no heartbeat for 5.0 s")
    text = str(_job(_member(0), lost))
    assert _row(text, "1")[2] == "lost"
    assert text.splitlines()[-1] == "rank 1 lost: no heartbeat for 5.0 s"
    assert "1 joined" in text


def test_of_a_reason_with_a_traceback_the_first_line_is_shown() -> None:
    reason = "ValueError: bad batch\nTraceback (most recent call last):\n  File"
    left = replace(_member(1), state="left", reason=reason)
    assert str(_job(_member(0), left)).splitlines()[-1] == "rank 1 left: ValueError: bad batch"


def test_a_failure_is_told_once() -> None:
    gone = [replace(_member(rank), state="left", reason=f"tired {rank}") for rank in range(6)]
    lost = replace(_member(6), state="lost", reason="its session broke")
    long = "r" * 400
    failures = [
        FailureStatus(6, "dead", "rank 6 is dead: killed by SIGKILL", 1.0),
        FailureStatus(0, "left", "rank 0 left the job because of tired 0", 1.0),
        FailureStatus(1, "left", f"rank 1 left the job because of {long}", 1.0),
        FailureStatus(2, "left", "rank 2 left the job because of tired 2", 1.0),
        FailureStatus(3, "left", "rank 3 left the job because of tired 3", 1.0),
    ]
    gone[1] = replace(gone[1], reason=long)
    lines = str(replace(_job(*gone, lost), failures=tuple(failures))).splitlines()
    assert lines[1:3] == [
        "failed first: rank 6 is dead: killed by SIGKILL",
        "then: rank 0 left the job because of tired 0",
    ]
    # Those that are cut or left out above, and those that did not fail.
    assert lines[-4:] == [
        f"rank 1 left: {long}",
        "rank 3 left: tired 3",
        "rank 4 left: tired 4",
        "rank 5 left: tired 5",
    ]
    assert lines[-5].split()[0] == "6"


def test_a_rank_that_is_back_and_silent_is_told_of_beside_its_failure() -> None:
    silent = replace(_member(1), condition="paused", condition_text="rank 1 is paused")
    failure = FailureStatus(1, "dead", "rank 1 is dead", 9.0)
    text = str(replace(_job(_member(0), silent), failures=(failure,)))
    assert text.splitlines()[-1] == "rank 1 is paused"


def test_a_group_says_it_only_of_its_own_ranks() -> None:
    gone = [replace(_member(rank), state="left", reason=f"tired {rank}") for rank in range(3)]
    group = GroupStatus("dp", (0, 2))
    text = render_plain(describe_group(_job(*gone, groups=(group,)), group))
    assert text.splitlines()[-2:] == ["rank 0 left: tired 0", "rank 2 left: tired 2"]


def test_a_label_stands_beside_the_rank() -> None:
    text = str(_job(_member(0, label="loader"), _member(1)))
    assert _row(text, "0")[:2] == ["0", "loader"]
    assert _row(text, "1")[:2] == ["1", "-"]
    assert "LABEL" not in str(_job(_member(0)))


def test_a_world_size_that_nobody_brought_is_not_shown_as_zero() -> None:
    assert "world size not agreed yet" in str(replace(_job(), world_size=0))


@pytest.mark.parametrize(
    ("ranks", "shown"), [((0, 1, 2, 3), "0-3"), ((0, 2, 3), "0,2-3"), ((3, 1), "3,1"), ((), "")]
)
def test_groups_are_listed_with_their_ranks(ranks: tuple[int, ...], shown: str) -> None:
    assert f"groups: dp ({shown})" in str(_job(groups=(GroupStatus("dp", ranks),)))


@pytest.mark.parametrize(
    ("elapsed", "shown"),
    [
        (0.0, "0.0 s"),
        (59.9, "59.9 s"),
        (60.0, "1 m 00 s"),
        (3599.9, "59 m 59 s"),
        (7630, "2 h 07 m"),
    ],
)
def test_durations_are_written_as_people_read_them(elapsed: float, shown: str) -> None:
    text = str(_job(_member(0, OperationStatus("world", "barrier", 1, 0, elapsed))))
    assert _row(text, "0")[-2] == shown


def test_no_line_is_wrapped_or_padded() -> None:
    long = replace(_member(0, label="x" * 200), host="h" * 200, reason="r " * 200)
    lines = str(_job(long)).splitlines()
    assert len(lines) == 4
    assert all(line == line.rstrip() for line in lines)


def test_names_from_the_network_are_not_taken_for_markup() -> None:
    text = str(_job(_member(0, label="[red]danger[/red]")))
    assert "[red]danger[/red]" in text


def test_a_terminal_is_not_sent_control_codes_from_the_network() -> None:
    text = str(_job(replace(_member(0), reason="\x1b[2Jgone\taway\nrank 7")))
    assert text.splitlines()[-1] == r"rank 0 joined: \x1b[2Jgone\taway"


def test_no_jobs_is_said_in_words() -> None:
    assert render_plain(describe_jobs([])) == "no jobs"


def test_jobs_are_set_apart_by_an_empty_line() -> None:
    text = render_plain(describe_jobs([_job(), replace(_job(), job="other")]))
    assert [line.partition(":")[0] for line in text.splitlines()] == ["job digits", "", "job other"]


def test_a_group_lists_every_rank_also_those_that_never_joined() -> None:
    group = GroupStatus("dp", (2, 5))
    job = _job(_member(2, OperationStatus("dp", "reduce", 9, 8, 0.5)), groups=(group,))
    text = render_plain(describe_group(job, group))
    assert text.splitlines()[0] == "group dp of job digits: 2 ranks, epoch 3"
    assert _row(text, "0") == [
        *("0", "2", "node-a", "joined", "0.2 s ago", "9", "8", "reduce", "0.5 s")
    ]
    wide = render_plain(describe_group(job, group), is_wide=True)
    assert _row(wide, "0")[:4] == ["0", "2", "node-a", "4002"]
    assert "never joined" in _row(text, "1")


def test_the_json_form_keeps_its_names() -> None:
    group = GroupStatus("dp", (0,))
    job = _job(_member(0, OperationStatus("dp", "reduce", 9, 8, 0.5)), groups=(group,))
    document = make_jobs_fields([job], 1_750_000_000.5)
    assert document["time"] == "2025-06-15T15:06:40.500Z"
    [shown] = document["jobs"]
    assert shown == {
        "job": "digits",
        "state": "running",
        "epoch": 3,
        "world_size": 4,
        "incarnation": "i",
        "keys": 1,
        "heartbeat_window_seconds": 5.0,
        "ended_age_seconds": None,
        "ended_time": None,
        "failures": [],
        "groups": [{"group": "dp", "ranks": [0]}],
        "members": [
            {
                "rank": 0,
                "member_id": "m0",
                "host": "node-a",
                "pid": 4000,
                "address": "10.0.0.1:5000",
                "label": "",
                "state": "joined",
                "reason": "",
                "condition": "",
                "condition_text": "",
                "section": None,
                "section_elapsed_seconds": None,
                "heartbeat_age_seconds": 0.25,
                "heartbeat_time": "2025-06-15T15:06:40.250Z",
                "gone_age_seconds": None,
                "gone_time": None,
                "clock_offset_seconds": None,
                "operations": [
                    {
                        "group": "dp",
                        "operation": "reduce",
                        "sequence": 9,
                        "completed": 8,
                        "elapsed_seconds": 0.5,
                        "since_time": "2025-06-15T15:06:40.000Z",
                    }
                ],
                "lateness": [],
            }
        ],
    }
