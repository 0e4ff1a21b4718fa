"""A picture of a report: latency and bandwidth against size, for each operation and ranks."""

from pathlib import Path
from typing import Any

from allhands.bench.ratios import Row
from allhands.bench.report import Report, group_by_case, list_systems

_PANEL_INCHES = (4.6, 3.4)
_DOTS_PER_INCH = 110


class NoPlot(Exception):
    """There is nothing to draw, or nothing to draw with; says which."""


def require_matplotlib() -> None:
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

    For each operation, dtype and number of ranks one panel has the times by size, and the one
    beside it the bytes of a rank's array by second. What is shaded lies between a tenth of the
    times and nine tenths.

    Raises:
        NoPlot: no matplotlib, a format that it does not know, or no times in the report.
    """
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in report["rows"] if "median" in row]
    if not rows:
        raise NoPlot("there are no times to draw")
    panels = list(dict.fromkeys(place[:3] for place in group_by_case(rows)))
    counts = sorted({ranks for _, _, ranks in panels})
    kinds = list(dict.fromkeys(panel[:2] for panel in panels))
    width, height = _PANEL_INCHES
    figure = Figure((2 * width * len(counts), height * len(kinds)), layout="constrained")
    FigureCanvasAgg(figure)
    grid: Any = figure.subplots(len(kinds), 2 * len(counts), squeeze=False)
    names = list_systems(rows)
    for line, (operation, dtype) in enumerate(kinds):
        for column, ranks in enumerate(counts):
            chosen = [
                row
                for row in rows
                if (row["operation"], row["dtype"], row["ranks"]) == (operation, dtype, ranks)
            ]
            pair = grid[line][2 * column], grid[line][2 * column + 1]
            if chosen:
                _draw_panel(*pair, f"{operation}, {ranks} ranks, {dtype}", chosen, names)
            else:
                for axes in pair:
                    axes.set_axis_off()
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


def _draw_panel(
    latency: Any, bandwidth: Any, title: str, rows: list[Row], names: list[str]
) -> None:
    latency.set(title=title, ylabel="microseconds", yscale="log")
    bandwidth.set(title=title, ylabel="GB/s of each rank's array")
    colors = {name: f"C{number}" for number, name in enumerate(names)}
    sizes = sorted({int(row["bytes"]) for row in rows})
    if not any(sizes):
        bandwidth.set_axis_off()
        for row in rows:
            micros = row["median"] * 1e6
            latency.bar(row["contender"], micros, color=colors[row["contender"]])
        return
    for name in names:
        mine = sorted((row for row in rows if row["contender"] == name), key=_get_nbytes)
        if mine:
            _draw_curves(latency, bandwidth, name, colors[name], mine)
    bandwidth.set_ylim(0, None)
    for axes in (latency, bandwidth):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [_format_size(nbytes) for nbytes in sizes])
        axes.grid(alpha=0.3)


def _draw_curves(latency: Any, bandwidth: Any, name: str, color: str, rows: list[Row]) -> None:
    sizes = [row["bytes"] for row in rows]
    look = {"color": color, "marker": "o", "markersize": 3}
    latency.plot(sizes, [row["median"] * 1e6 for row in rows], label=name, **look)
    spread = ([row[end] * 1e6 for row in rows] for end in ("low", "high"))
    latency.fill_between(sizes, *spread, color=color, alpha=0.15)
    bandwidth.plot(sizes, [row["bytes"] / row["median"] / 1e9 for row in rows], **look)


def _get_nbytes(row: Row) -> int:
    nbytes: int = row["bytes"]
    return nbytes


def _format_size(nbytes: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes % unit == 0:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"
