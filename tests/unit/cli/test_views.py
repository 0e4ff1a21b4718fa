"""Tables on terminals of 80 columns: whole headings, order, colours, height."""

import io
import re
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from allhands.cli.render import Output
from allhands.cli.watching import View
from allhands.coordinator.diagnosis import (
    CallPosition,
    Diagnosis,
    GroupDiagnosis,
    PendingOperation,
    RankDiagnosis,
    describe_diagnosis,
)
from allhands.coordinator.sections import Marked, Section, Table
from allhands.coordinator.status import (
    JobStatus,
    MemberStatus,
    describe_group,
    describe_jobs,
    sort_jobs,
)
from allhands.coordinator.tables import crop, draw, fit_columns, make_console, render_plain
from allhands_proto.statuses import GroupStatus, LatenessStatus, OperationStatus

OPERATION = "reduce_scatter_tensor"
HOST = "trainer-worker-0-of-64.training.svc.cluster.local"


def make_member(rank: int) -> MemberStatus:
    return MemberStatus(
        rank=rank,
        member_id=f"m{rank}",
        host=HOST,
        pid=4_194_300 + rank,
        address=f"[2001:db8::aaaa:bbbb:cccc]:{50000 + rank}",
        label="",
        state="joined",
        reason="",
        last_heartbeat=185.0,
        operations=(OperationStatus("data-parallel", OPERATION, 12345, 12344, 55.5),),
        lateness=(LatenessStatus("data-parallel", 64, 0.0501, 0.1, 3),),
    )


def make_job(name: str, state: str = "running") -> JobStatus:
    return JobStatus(
        job=name,
        state=state,
        epoch=1,
        world_size=2,
        members=(make_member(0), make_member(1)),
        groups=(),
        heartbeat_window=5.0,
        keys=0,
        incarnation="i",
        ended=9.0 if state == "ended" else None,
    )


def wait(rank: int) -> RankDiagnosis:
    source = "/home/somebody/project/train.py:331 in train_one_epoch"
    signature = f"{OPERATION}(float32[4194304], SUM)"
    pending = PendingOperation("world", 123, OPERATION, signature, 185.0, (0, 3), "", source, 185.0)
    return RankDiagnosis(rank, HOST, 4_194_300, "", (pending,), 0.0, "", "")


def show_at(sections: list[Section], width: int, color: str = "never", height: int = 24) -> str:
    out = io.StringIO()
    console = make_console(out, color, {})
    console.size = (width, height)
    console.print(draw(sections))
    return out.getvalue()


VIEWS: dict[str, list[Section]] = {
    "status": describe_jobs([make_job("digits")]),
    "group": describe_group(make_job("digits"), GroupStatus("data-parallel", (0, 1, 2))),
    "diagnose": describe_diagnosis(
        Diagnosis(
            "digits",
            "running",
            (wait(1), wait(2)),
            (GroupDiagnosis("world", (CallPosition(123, OPERATION, (1, 2)),)),),
            (),
        )
    ),
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_table_fits_80_columns_with_whole_headings(view: str) -> None:
    shown = show_at(VIEWS[view], 80)
    assert max(map(len, shown.splitlines())) <= 80
    for table in VIEWS[view]:
        if isinstance(table, Table):
            for heading, _ in table.narrow().columns:
                for word in heading.split():
                    assert re.search(rf"(?m)(^|\s){word}(\s|$)", shown), f"{word} in\n{shown}"


@pytest.mark.parametrize("view", ["status", "group"])
def test_numbers_and_times_are_never_cut(view: str) -> None:
    shown = show_at(VIEWS[view], 80)
    for text in ("12345", "55.5 s", "3 m 05 s ago"):
        assert text in shown


def test_a_screen_that_is_too_narrow_for_all_headings_ends_the_narrowing() -> None:
    table = Table(("LEFT", "left"), ("RIGHT", "right"))
    table.add_row("a long text", "123456")
    assert fit_columns(table, 80) == [11, 6]
    assert fit_columns(table, 15) == [7, 6]
    assert fit_columns(table, 5) == [4, 6]


def test_wide_has_the_rest_and_cuts_nothing() -> None:
    narrow, wide = (render_plain(VIEWS["status"], is_wide=is_wide) for is_wide in (False, True))
    assert "ADDRESS" not in narrow
    assert "4194300" not in narrow
    for text in (HOST, "4194301", "[2001:db8::aaaa:bbbb:cccc]:50001"):
        assert text in wide


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("variable", "is_coloured"), [("", True), ("1", False)])
def test_wide_on_a_narrow_terminal_breaks_no_row(
    variable: str, is_coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = {}
    for name, value in {"COLUMNS": "80", "TERM": "xterm", "NO_COLOR": variable}.items():
        monkeypatch.setenv(name, value)
    for output in (Output.TABLE, Output.WIDE):
        monkeypatch.setattr(sys, "stdout", _Terminal())
        View("JobList", dict, lambda: VIEWS["status"]).show(output)
        shown[output] = sys.stdout.getvalue()
    rows = [line for line in shown[Output.WIDE].splitlines() if HOST in line]
    assert len(rows) == 2
    for rank, row in enumerate(rows):
        assert f"[2001:db8::aaaa:bbbb:cccc]:{50000 + rank}" in row
    assert ("\x1b[33m" in shown[Output.WIDE]) is is_coloured
    # The other one is fitted.
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown[Output.TABLE])
    assert max(map(len, plain.splitlines())) <= 80
    assert HOST not in plain


def test_running_jobs_come_first_then_keys_then_ended_by_name() -> None:
    states = {"a": "ended", "b": "empty", "z": "running", "y": "forming", "x": "ended"}
    jobs = [make_job(name, state) for name, state in states.items()]
    assert [job.job for job in sort_jobs(jobs)] == ["y", "z", "b", "a", "x"]


def test_many_ended_jobs_do_not_hide_the_running_one() -> None:
    ended = [make_job(f"a{number}", "ended") for number in range(20)]
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True)
    drawn = draw(describe_jobs(sort_jobs([*ended, make_job("z")])))
    with console.capture() as shown:
        console.print(crop(console, drawn))
    lines = shown.get().splitlines()
    assert len(lines) == 23
    assert lines[0].startswith("job z: running")
    # Each job has five lines, with the empty one behind it.
    assert lines[-1] == f"... and {21 * 5 - 1 - 22} lines more"


def test_what_fits_is_not_cut() -> None:
    console = Console(file=io.StringIO(), width=80, height=24)
    drawn = draw(["one", "two"])
    assert crop(console, drawn) is drawn


def test_lost_ranks_are_red_and_late_ones_yellow() -> None:
    lost = replace(make_member(1), state="lost", reason="it died")
    early = replace(make_member(2), lateness=(LatenessStatus("data-parallel", 64, 0.001, 1, 0),))
    [_, table, *reasons] = describe_jobs(
        [replace(make_job("j"), members=(make_member(0), lost, early))]
    )
    assert isinstance(table, Table)
    marks = [
        {str(cell): cell.mark for cell in row if isinstance(cell, Marked)} for row in table.rows
    ]
    assert marks == [{"50.1 ms": "late"}, {"lost": "bad", "50.1 ms": "late"}, {}]
    assert [one.mark for one in reasons if isinstance(one, Marked)] == ["bad"]


def test_colours_are_for_terminals_and_can_be_chosen() -> None:
    sections: list[Section] = [Marked("rank 1 lost", "bad"), Marked("rank 2 is late", "late")]
    assert render_plain(sections) == "rank 1 lost\nrank 2 is late"
    assert "\x1b[31mrank 1 lost\x1b[0m" in render_plain(sections, has_color=True)
    assert "\x1b[33mrank 2 is late\x1b[0m" in render_plain(sections, has_color=True)


@pytest.mark.parametrize("has_color", [False, True])
def test_no_line_is_wrapped_for_a_dumb_terminal(
    has_color: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert len(render_plain(["word " * 100], has_color=has_color).splitlines()) == 1


@pytest.mark.parametrize(
    ("color", "environ", "is_coloured"),
    [
        ("auto", {}, True),
        ("auto", {"NO_COLOR": "1"}, False),
        ("auto", {"NO_COLOR": ""}, True),
        ("always", {"NO_COLOR": "1"}, True),
        ("never", {}, False),
    ],
)
def test_no_color_counts_unless_colours_were_asked_for(
    color: str, environ: dict[str, str], is_coloured: bool
) -> None:
    assert make_console(io.StringIO(), color, environ).no_color is not is_coloured
