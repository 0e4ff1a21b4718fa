"""Report of a run: as JSON and as tables."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from allhands.bench import sessions, start_up
from allhands.bench.case import CONVENTIONS, TIMES
from allhands.bench.driver import CaseResult
from allhands.bench.ratios import (
    Row,
    add_hidden,
    add_ratios,
    find_base,
    find_ratio,
    list_comparisons,
    name_contender,
)

Report = dict[str, Any]
Link = dict[str, Any]
"""What is between the ranks: its name, and between hosts what plain TCP does there."""

_PIPE_WIDTH = 500
_OTHERS = "CPU of others"
"""Of all cores' time while a cell was measured: figures of a busy machine mean little."""


def make_rows(results: Iterable[CaseResult]) -> list[Row]:
    """Return the rows of one case; times in seconds."""
    rows = []
    for result in results:
        cell, summary = result.case, result.summary
        rows.append(
            {
                "operation": cell.operation,
                "ranks": cell.ranks,
                "bytes": cell.nbytes,
                "dtype": cell.dtype,
                "elements": cell.elements,
                "contender": name_contender(result.system, cell.form),
                "form": cell.form,
                **(asdict(summary) if summary else {}),
                "calls": result.calls,
                "variant": result.variant,
                "others_cpu": result.others_cpu,
                "refused": result.refused,
                "failed": result.failed,
            }
        )
    add_ratios(rows)
    add_hidden(rows)
    return rows


def make_report(
    machine: Sequence[Mapping[str, Any]],
    systems: Mapping[str, Any],
    rows: Sequence[Row],
    link: Link,
) -> Report:
    """Assemble the report of a run; `machine` holds one or more measurements of the machine."""
    return {
        "link": link,
        "machine": [dict(one) for one in machine],
        "contenders": dict(systems),
        "conventions": {
            "times": TIMES,
            **{row["operation"]: CONVENTIONS[row["operation"]] for row in rows},
        },
        "rows": list(rows),
    }


def merge_reports(reports: Sequence[Report]) -> Report:
    """Merge the reports of several runs of the same systems.

    Raises:
        ValueError: the runs used different links.
    """
    first = reports[0]
    links = sorted({one["link"]["name"] for one in reports})
    if len(links) > 1:
        raise ValueError(f"these ran over different links: {', '.join(links)}")
    merged: Report = {"link": first["link"], "contenders": {}, "conventions": {}}
    for one in reports:
        for name in ("contenders", "conventions"):
            merged[name] |= one[name]
    for name in ("machine", "load", "rows", "start_up", "sessions"):
        # Reports of older releases have fewer of them.
        merged[name] = [part for one in reports for part in one.get(name, ())]
    return merged


def group_by_case(rows: Iterable[Row]) -> dict[tuple[str, str, int, int], dict[str, Row]]:
    """Sort rows by operation, dtype, ranks and bytes, and then by contender."""
    cells: dict[tuple[str, str, int, int], dict[str, Row]] = {}
    for row in rows:
        place = (row["operation"], row["dtype"], row["ranks"], row["bytes"])
        cells.setdefault(place, {})[row["contender"]] = row
    return cells


def list_systems(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row["contender"] for row in rows))


def show(report: Report, console: Console) -> None:
    """Print a table for each operation and dtype, then the limits of the machine."""
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    cells = group_by_case(report["rows"])
    for operation, dtype in dict.fromkeys((place[0], place[1]) for place in cells):
        _show_operation(report, operation, dtype, console)
    if jobs := report.get("start_up"):
        console.print(_make_start_up_table(jobs))
    if worlds := report.get("sessions"):
        console.print(sessions.make_table(worlds))
    console.print(_describe_machine(report), soft_wrap=True)
    for load in report.get("load", ()):
        console.print(_describe_load(load), soft_wrap=True)
    if "tcp_gbs" in (link := report["link"]):
        console.print(
            f"{link['name']}: TCP takes {link['tcp_round_trip_us']:.0f} us there and back, and "
            f"streams at {link['tcp_gbs']:.3f} GB/s"
        )
    for name, about in report["contenders"].items():
        console.print(
            f"{name}: {', '.join(' '.join(pair) for pair in about.items())}", soft_wrap=True
        )


def list_failures(report: Report) -> dict[str, str]:
    """Say which contenders failed, and how."""
    found: dict[str, str] = {}
    for row in (*report["rows"], *report.get("start_up", ())):
        if row["failed"]:
            found.setdefault(row["contender"], row["failed"])  # what follows from it says less
    return found


def _make_start_up_table(rows: Sequence[Row]) -> Table:
    table = Table(title="start_up: jobs that reduce 8 bytes once and end, medians")
    for column in start_up.COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*start_up.list_cells(row))
    return table


def _describe_load(load: Mapping[str, float]) -> str:
    return (
        f"load, in {load['seconds']:.0f} s: average {load['load_average_before']:.1f} before and "
        f"{load['load_average_after']:.1f} after, with this run; other programs took "
        f"{load['others_cpu']:.0%} of the time of all cores"
    )


def _show_operation(report: Report, operation: str, dtype: str, console: Console) -> None:
    places = {
        place: found
        for place, found in group_by_case(report["rows"]).items()
        if place[:2] == (operation, dtype)
    }
    rows = [row for cell in places.values() for row in cell.values()]
    refusing = _list_refusals(rows)
    names = [name for name in list_systems(rows) if name not in refusing]
    comparisons = list_comparisons(names, operation)
    base = find_base(names) or ""
    hidden = [
        name for name in names if any("hidden" in cell.get(name, {}) for cell in places.values())
    ]
    what = report["conventions"][operation]
    where = report["link"]["name"]
    table = Table(
        title=f"{operation}, {dtype}, {where}: microseconds, median (10 % to 90 %)\n{what}"
    )
    shown = (*names, *(f"{name} hides" for name in hidden), *comparisons)
    for column in ("ranks", "bytes", *shown, _OTHERS):
        table.add_column(column, justify="right", no_wrap=True)
    for (_, _, ranks, nbytes), cell in places.items():
        ratios = [find_ratio(cell, peers, base) for peers in comparisons.values()]
        table.add_row(
            str(ranks),
            f"{nbytes:,}",
            *(_format_figure(cell.get(name)) for name in names),
            *(_format_hidden(cell.get(name)) for name in hidden),
            *("-" if ratio is None else _format_ratio(ratio) for ratio in ratios),
            _format_others(cell.values()),
        )
    console.print(table)
    for name, reason in refusing.items():
        console.print(f"not in the table: {name}: {reason}", soft_wrap=True)


def _list_refusals(rows: Sequence[Row]) -> dict[str, str]:
    """Return the contenders that refused every case, each with a reason."""
    measured = {row["contender"] for row in rows if row["refused"] is None}
    return {row["contender"]: row["refused"] for row in rows if row["contender"] not in measured}


def _format_hidden(row: Row | None) -> str:
    return "-" if row is None or "hidden" not in row else f"{row['hidden']:.0%}"


def _format_figure(row: Row | None) -> str:
    if row is None:
        return "-"
    if "median" not in row:
        return "failed" if row["failed"] else "refused"
    return (
        f"{_format_micros(row['median'])} ({_format_micros(row['low'])} to "
        f"{_format_micros(row['high'])})"
    )


def _format_micros(seconds: float) -> str:
    micros = seconds * 1e6
    return (
        f"{micros:,.2f}" if micros < 10 else f"{micros:,.1f}" if micros < 100 else f"{micros:,.0f}"
    )


def _format_others(rows: Iterable[Row]) -> str:
    known = [row["others_cpu"] for row in rows if row["others_cpu"] is not None]
    return f"{max(known):.0%}" if known else "-"


def _format_ratio(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 100 else f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2g}"


def _describe_machine(report: Report) -> str:
    def format_range(name: str, form: str) -> str:
        values = [one[name] for one in report["machine"] if one[name] is not None]
        if not values:
            return "(not measured)"
        low, high = format(min(values), form), format(max(values), form)
        return low if low == high else f"{low} to {high}"

    return (
        f"this machine, meanwhile: {format_range('cores', 'd')} cores; a core reads what another "
        "wrote at "
        f"{format_range('cross_core_read_gbs', '.0f')} GB/s, memory copies at "
        f"{format_range('memory_copy_gbs', '.0f')} GB/s, a cache line takes "
        f"{format_range('line_bounce_ns', '.0f')} ns from core to core; TCP over loopback takes "
        f"{format_range('tcp_round_trip_us', '.0f')} us there and back and streams at "
        f"{format_range('tcp_gbs', '.1f')} GB/s"
    )
