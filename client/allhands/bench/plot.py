"""A picture of a report: latency and bandwidth against size, for each operation and ranks."""

from pathlib import Path
from typing import Any

from allhands.bench.report import Report, Row, by_cell, contenders_of

_PANEL_INCHES = (4.6, 3.4)
_DOTS_PER_INCH = 110


class NoPlot(Exception):
    """There is nothing to draw, or nothing to draw with; says which."""


def check() -> None:
    """Find out now, and not after the measurement, whether there is something to draw with.

    Raises:
        NoPlot: there is not.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise NoPlot("--plot needs matplotlib: pip install 'allhands[plot]'") from error


def plot(report: Report, path: Path) -> None:
    """Draw a report; the end of the file's name says in which format.

    Every panel has its sizes below, microseconds on the left, and GB/s in a panel beside it.

    Raises:
        NoPlot: no matplotlib, a format that it does not know, or no times in the report.
    """
    check()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in report["rows"] if "median" in row]
    if not rows:
        raise NoPlot("there are no times to draw")
    panels = list(dict.fromkeys(place[:3] for place in by_cell(rows)))
    counts = sorted({ranks for _, _, ranks in panels})
    kinds = list(dict.fromkeys(panel[:2] for panel in panels))
    width, height = _PANEL_INCHES
    figure = Figure((2 * width * len(counts), height * len(kinds)), layout="constrained")
    FigureCanvasAgg(figure)
    grid: Any = figure.subplots(len(kinds), 2 * len(counts), squeeze=False)
    names = contenders_of(rows)
    for line, (operation, dtype) in enumerate(kinds):
        for column, ranks in enumerate(counts):
            chosen = [
                row
                for row in rows
                if (row["operation"], row["dtype"], row["ranks"]) == (operation, dtype, ranks)
            ]
            pair = grid[line][2 * column], grid[line][2 * column + 1]
            _panel(*pair, f"{operation}, {ranks} ranks, {dtype}", chosen, names)
    handles = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles))
    try:
        figure.savefig(path, dpi=_DOTS_PER_INCH)
    except ValueError as error:
        raise NoPlot(str(error)) from error


def _panel(latency: Any, bandwidth: Any, title: str, rows: list[Row], names: list[str]) -> None:
    if not rows:
        latency.set_axis_off()
        bandwidth.set_axis_off()
        return
    for number, name in enumerate(names):
        mine = sorted(
            (row for row in rows if row["contender"] == name), key=lambda row: int(row["bytes"])
        )
        if not mine:
            continue
        sizes = [row["bytes"] for row in mine]
        look = {"color": f"C{number}", "marker": "o", "markersize": 3}
        latency.plot(sizes, [row["median"] * 1e6 for row in mine], label=name, **look)
        spread = ([row[end] * 1e6 for row in mine] for end in ("low", "high"))
        latency.fill_between(sizes, *spread, color=f"C{number}", alpha=0.15)
        bandwidth.plot(sizes, [row["bytes"] / row["median"] / 1e9 for row in mine], **look)
    latency.set(title=title, ylabel="microseconds", yscale="log")
    bandwidth.set(title=title, ylabel="GB/s of each rank's array", ylim=(0, None))
    for axes in (latency, bandwidth):
        if any(row["bytes"] for row in rows):
            axes.set_xscale("log", base=2)
            axes.set_xlabel("bytes")
        axes.grid(alpha=0.3)
