"""The benchmark's report: ratios, merging, plots and missing figures."""

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from allhands.bench import netns
from allhands.bench.case import BenchCase
from allhands.bench.driver import CaseResult
from allhands.bench.interleaving import Summary
from allhands.bench.report import list_failures, make_report, make_rows, merge_reports, show
from allhands.bench.start_up import JobFigures, make_row

MACHINE = {
    "cores": 2,
    "cross_core_read_gbs": 40.0,
    "memory_copy_gbs": 20.0,
    "line_bounce_ns": None,
    "tcp_round_trip_us": 20.0,
    "tcp_gbs": 3.0,
}


def results(operation: str = "all_reduce", nbytes: int = 8) -> list[CaseResult]:
    cell = BenchCase(operation, 2, nbytes)
    return [
        CaseResult(cell, "allhands", Summary(2e-6, 1e-6, 3e-6, 9)),
        CaseResult(cell, "gloo", Summary(5e-4, 4e-4, 6e-4, 9)),
        CaseResult(cell, "openmpi", refused="this MPI has no float32"),
        CaseResult(cell, "mpich", failed="WRONG RESULT on rank 1"),
    ]


def a_report(*cells: list[CaseResult], link: str = "this host") -> "dict[str, object]":
    rows = [row for cell in cells for row in make_rows(cell)]
    return make_report(
        [MACHINE, {**MACHINE, "memory_copy_gbs": 9.0}],
        {"gloo": {"torch": "2.13.0"}},
        rows,
        {"name": link},
    )


def shown(what: "dict[str, object]") -> str:
    console = Console(record=True, file=io.StringIO())
    show(what, console)
    return console.export_text()


def test_a_ratio_says_how_many_times_longer_the_peer_takes() -> None:
    rows = {row["contender"]: row for row in make_rows(results())}
    assert rows["gloo"]["ratios"] == {"allhands": pytest.approx(250)}
    assert "ratios" not in rows["openmpi"]
    assert "ratios" not in rows["allhands"]


def test_mpis_share_a_column_of_ratios_that_has_the_faster() -> None:
    cell = BenchCase("all_reduce", 2, 8)
    timed = {"allhands": 2e-6, "allhands-arena": 1e-6, "openmpi": 8e-6, "mpich": 6e-6}
    text = shown(a_report([CaseResult(cell, n, Summary(t, t, t, 1)) for n, t in timed.items()]))
    assert "MPI / allhands " in text
    assert next(line for line in text.splitlines() if "8.00" in line).split("│")[7].strip() == "3"


def in_forms(operation: str, **micros: tuple[float, ...]) -> list[CaseResult]:
    """Give the results of an operation with forms: of each system the times, by form."""
    return [
        CaseResult(form, system, Summary(time * 1e-6, 0.0, 1.0, 1))
        for system, times in micros.items()
        for form, time in zip(BenchCase(operation, 2, 1024).forms, times, strict=True)
    ]


def test_forms_that_do_the_same_are_compared_with_the_first_of_allhands() -> None:
    rows = make_rows(in_forms("coalesced_all_reduce", allhands=(2, 4, 6), openmpi=(8, 9, 10)))
    compared = [row.get("ratios", {}) for row in rows]
    assert [set(one) for one in compared] == [set(), *[{"allhands coalescing"}] * 5]
    factors = [factor for one in compared for factor in one.values()]
    assert factors == pytest.approx([2, 3, 4, 4.5, 5])


def test_the_hidden_part_is_what_call_and_product_take_less_together() -> None:
    results = in_forms("overlap_all_reduce", allhands=(12, 10, 11), openmpi=(20, 10, 10))
    hidden = {row["contender"]: row.get("hidden") for row in make_rows(results)}
    assert hidden["allhands overlapped"] == pytest.approx(0.9)
    assert hidden["openmpi overlapped"] == pytest.approx(0)
    assert hidden["allhands call"] is None
    text = shown(a_report(results))
    assert "90%" in text
    assert "allhands overlapped hides" in text


def test_who_refuses_every_case_stands_below_the_table_with_the_reason() -> None:
    text = shown(a_report(results()))
    assert "not in the table: openmpi: this MPI has no float32" in text


def test_the_load_of_a_run_is_told() -> None:
    report = a_report(results())
    report["load"] = [
        {
            "seconds": 20.0,
            "load_average_before": 0.5,
            "load_average_after": 2.1,
            "others_cpu": 0.07,
        }
    ]
    assert "average 0.5 before and 2.1 after" in shown(report)
    assert "other programs took 7% of the time of all cores" in shown(report)


def test_a_job_that_failed_has_no_figures_and_is_told() -> None:
    figures = JobFigures(1.5, 0.2, 3.0, 30 << 20, 4)
    report = a_report(results())
    report["start_up"] = [
        make_row(32, "allhands", [figures], None),
        make_row(32, "mpich", [], "a rank ended"),
    ]
    text = shown(report)
    assert "1.50 (1.50 to 1.50)" in text
    assert list_failures(report)["mpich"]


def test_a_wrong_result_has_no_figure_in_the_table() -> None:
    text = shown(a_report(results()))
    line = next(line for line in text.splitlines() if "500 (400 to 600)" in line)
    assert "2.00 (1.00 to 3.00)" in line
    assert "failed" in line
    assert "250" in line
    assert "reads what another wrote at 40 GB/s, memory copies at 9 to 20 GB/s" in text
    assert "(not measured) ns from core to core" in text


def test_the_first_failure_of_a_contender_is_told() -> None:
    later = [CaseResult(BenchCase("barrier", 2, 0), "mpich", failed="it failed in an earlier cell")]
    assert list_failures(a_report(results(), later)) == {"mpich": "WRONG RESULT on rank 1"}


def test_several_runs_make_one_report() -> None:
    one = merge_reports([a_report(results()), a_report(results("broadcast", 1024))])
    assert [row["operation"] for row in one["rows"]] == ["all_reduce"] * 4 + ["broadcast"] * 4
    assert len(one["machine"]) == 4
    assert set(one["conventions"]) == {"times", "all_reduce", "broadcast"}


def test_runs_over_different_links_do_not_mix() -> None:
    with pytest.raises(ValueError, match="different links: this host, two hosts, 1gbit"):
        merge_reports([a_report(results()), a_report(results(), link="two hosts, 1gbit")])


@pytest.mark.parametrize("name", ["picture.png", "picture.svg"])
def test_a_picture_is_drawn_in_the_format_of_its_name(tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    from allhands.bench.plot import plot

    path = tmp_path / name
    plot(a_report(results(), results(nbytes=1024), results("barrier", 0)), path)
    start = path.read_bytes()[:200]
    assert start.startswith(b"\x89PNG") or b"<?xml" in start
    assert len(path.read_bytes()) > 5000


def test_without_matplotlib_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from allhands.bench import plot

    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(plot.NoPlot, match=r"pip install 'allhands\[plot\]'"):
        plot.require_matplotlib()


def test_namespaces_without_root_are_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(netns.NoNamespaces, match="need root"), netns.open_two_hosts(None):
        pass


@pytest.mark.parametrize("rate", ["fast", "1", "0gbit", "10 gbit", ""])
def test_a_rate_that_is_none_is_refused(rate: str) -> None:
    with pytest.raises(ValueError, match="is not a rate"):
        netns.check_rate(rate)


def test_a_rate_may_be_none() -> None:
    assert netns.check_rate("none") is None
    assert netns.check_rate("10gbit") == "10gbit"
