"""Report of a run: as JSON and as tables."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from allhands.bench.case import CONVENTIONS, TIMES
from allhands.bench.driver import CaseResult
from allhands.bench.systems import ALLHANDS

Row = dict[str, Any]
"""One result, as it stands in the JSON."""
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
                "contender": result.system,
                **(asdict(summary) if summary else {}),
                "calls": result.calls,
                "variant": result.variant,
                "others_cpu": result.others_cpu,
                "refused": result.refused,
                "failed": result.failed,
            }
        )
    _add_ratios(rows)
    return rows


def _add_ratios(rows: list[Row]) -> None:
    """Add to each peer by which factor it takes longer than each kind of allhands."""
    own = {
        row["contender"]: row["median"]
        for row in rows
        if row["contender"] in ALLHANDS and "median" in row
    }
    for row in rows:
        if row["contender"] not in ALLHANDS and "median" in row:
            row["ratios"] = {name: row["median"] / median for name, median in own.items()}


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
    contenders: dict[str, Any] = {}
    conventions: dict[str, str] = {}
    machine: list[dict[str, Any]] = []
    rows: list[Row] = []
    for one in reports:
        contenders |= one["contenders"]
        conventions |= one["conventions"]
        machine += one["machine"]
        rows += one["rows"]
    return {
        "link": first["link"],
        "machine": machine,
        "contenders": contenders,
        "conventions": conventions,
        "rows": rows,
    }


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
    console.print(_describe_machine(report), soft_wrap=True)
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
    for row in report["rows"]:
        if row["failed"]:
            found.setdefault(row["contender"], row["failed"])  # what follows from it says less
    return found


def _show_operation(report: Report, operation: str, dtype: str, console: Console) -> None:
    places = {
        place: found
        for place, found in group_by_case(report["rows"]).items()
        if place[:2] == (operation, dtype)
    }
    names = list_systems(row for found in places.values() for row in found.values())
    pairs = [
        (peer, own) for peer in names if peer not in ALLHANDS for own in names if own in ALLHANDS
    ]
    what = report["conventions"][operation]
    where = report["link"]["name"]
    table = Table(
        title=f"{operation}, {dtype}, {where}: microseconds, median (10 % to 90 %)\n{what}"
    )
    for column in ("ranks", "bytes", *names, *(f"{peer} / {own}" for peer, own in pairs), _OTHERS):
        table.add_column(column, justify="right", no_wrap=True)
    for (_, _, ranks, nbytes), found in places.items():
        ratios = [found.get(peer, {}).get("ratios", {}).get(own) for peer, own in pairs]
        table.add_row(
            str(ranks),
            f"{nbytes:,}",
            *(_format_figure(found.get(name)) for name in names),
            *("-" if ratio is None else _format_ratio(ratio) for ratio in ratios),
            _format_others(found.values()),
        )
    console.print(table)


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
