"""`python -m support.scale.table`: simulated worlds beside measured ones, and beyond.

Reads what `python -m allhands.bench.sessions -o json` has written. The costs are fitted to some
sizes of it, and held against the others. `ratio` is prediction / measurement; sizes that the costs
were fitted to have a star. Time beside a measured one is for ranks on the coordinator's own host,
whose CPU they share; time of larger worlds is for ranks on hosts of their own.
"""

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table

from support.scale.costs import Costs, Traffic, describe_costs, fit_costs
from support.scale.simulation import Measured, simulate

Rows: TypeAlias = Mapping[tuple[int, str], Mapping[str, float]]

_GUESS = Costs(3e-4, 3e-4, 6e-5, 6e-5, 2e-9, 1e-9)
"""Of the times at which heartbeats come, until costs are fitted."""


def read_rows(path: Path) -> Rows:
    """Return the measured operations by size and name."""
    rows = json.loads(path.read_text())["rows"]
    return {(row["size"], row["operation"]): row for row in rows}


def fit(measured: Rows, sizes: Sequence[int]) -> Costs:
    """Fit the costs to the CPU times of worlds of some sizes."""
    samples: list[tuple[Traffic, float]] = []
    for size in sizes:
        for name, one in simulate(size, _GUESS).items():
            row = measured[size, name]
            cpu = row["cpu"] / row["seconds"] if name == "rest" else row["cpu"]
            samples.append((one.traffic, cpu))
    return fit_costs(samples)


def fit_stretch(measured: Rows, sizes: Sequence[int], costs: Costs) -> float:
    """Fit the factor by which ranks on the same host slow the coordinator down."""
    ratios = []
    for size in sizes:
        for name, one in simulate(size, costs).items():
            if name not in ("rest", "failure of one"):
                ratios.append(measured[size, name]["seconds"] / one.seconds)
    return statistics.median(ratios)


def make_row(
    size: int, name: str, one: Measured, row: Mapping[str, Any] | None, stretch: float
) -> list[str]:
    traffic = one.traffic
    nbytes = traffic.sent_nbytes + traffic.received_nbytes
    cells = [name, f"{traffic.messages:,.0f}", f"{nbytes / 1e6:,.1f}", f"{one.cpu:,.2f}"]
    if row is None:
        return [
            f"{size:,}",
            *cells,
            "",
            "",
            "" if name == "rest" else f"{one.seconds:,.2f}",
            "",
            "",
        ]
    cpu = row["cpu"] / row["seconds"] if name == "rest" else row["cpu"]
    cells += [f"{cpu:,.2f}", f"{one.cpu / cpu:.2f}" if cpu > 0 else ""]
    if name == "rest":
        return [f"{size:,}", *cells, "", "", ""]
    seconds = one.seconds if name == "failure of one" else one.seconds * stretch
    ratio = f"{seconds / row['seconds']:.2f}"
    return [f"{size:,}", *cells, f"{seconds:,.2f}", f"{row['seconds']:,.2f}", ratio]


def make_table(
    measured: Rows, fitted: Sequence[int], beyond: Sequence[int]
) -> tuple[Costs, float, Table]:
    """Return the costs, the factor of time, and a table of all sizes."""
    costs = fit(measured, fitted)
    stretch = fit_stretch(measured, fitted, costs)
    table = Table(title="worlds, simulated and measured")
    table.add_column("ranks", no_wrap=True, justify="right")
    table.add_column("operation", no_wrap=True)
    for column in ("messages", "MB", "CPU s", "measured", "ratio", "seconds", "measured", "ratio"):
        table.add_column(column, justify="right")
    sizes = sorted({size for size, _ in measured})
    for size in (*sizes, *beyond):
        found = simulate(size, costs)
        for name, one in found.items():
            row = make_row(size, name, one, measured.get((size, name)), stretch)
            table.add_row(row[0] + ("*" if size in fitted else ""), *row[1:])
        table.add_section()
    return costs, stretch, table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m support.scale.table")
    parser.add_argument("measured", type=Path, help="rows of the benchmark, as JSON")
    parser.add_argument("--fit", default="250,1000", help="sizes that the costs are fitted to")
    parser.add_argument("--beyond", default="10000,100000", help="sizes that are only simulated")
    arguments = parser.parse_args()
    fitted, beyond = (
        [int(one) for one in text.split(",") if one] for text in (arguments.fit, arguments.beyond)
    )
    costs, stretch, table = make_table(read_rows(arguments.measured), fitted, beyond)
    console = Console(width=120)
    console.print(table)
    console.print(describe_costs(costs), soft_wrap=True)
    console.print(f"ranks on the coordinator's host slow it down by {stretch:.2f}")


if __name__ == "__main__":
    main()
