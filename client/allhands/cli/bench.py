"""`allhands bench`: how long all_reduce takes, beside what people would use instead."""

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_PIPE_WIDTH = 120
_PEER_MODULES = {"gloo": "torch"}


def bench_command(
    ranks: Annotated[str, typer.Option(help="Numbers of ranks, comma-separated.")] = "2,4",
    sizes: Annotated[str, typer.Option(help="Array sizes, comma-separated.")] = "8B,1MiB,64MiB",
    vs: Annotated[str, typer.Option(help="Peers to measure beside, e.g. gloo.")] = "",
    output: Annotated[
        str, typer.Option("-o", "--output", help="How to print the result: table or json.")
    ] = "table",
) -> None:
    """Time all_reduce of float32 over links on this host; ranks and peers take turns in one run.

    Every result is checked. Ratios above 1 say how many times faster allhands was.
    """
    peers = [name for name in vs.split(",") if name]
    for name in peers:
        if name not in _PEER_MODULES:
            raise typer.BadParameter(f"no peer {name!r}; there are: {', '.join(_PEER_MODULES)}")
        if importlib.util.find_spec(_PEER_MODULES[name]) is None:
            raise typer.BadParameter(f"{name} needs `pip install {_PEER_MODULES[name]}`")
    if output not in ("table", "json"):
        raise typer.BadParameter(f"--output is table or json, not {output!r}")
    from allhands.bench.probe import cross_core_read, memory_copy

    machine = {"cross_core_read_gbs": cross_core_read(), "memory_copy_gbs": memory_copy()}
    rows: list[dict[str, Any]] = []
    for count in (_number(text) for text in ranks.split(",")):
        rows += _run(count, [_nbytes(text) for text in sizes.split(",")], peers)
    if output == "json":
        typer.echo(json.dumps({"machine": machine, "rows": rows}, indent=2))
    else:
        _show(machine, rows, peers)


def _run(ranks: int, sizes: list[int], peers: list[str]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="allhands-bench-") as folder:
        out = Path(folder, "rows.json")
        job = [sys.executable, "-m", "allhands.cli.main", "run", "-n", str(ranks), "-m"]
        what = ["allhands.bench.rank", "--sizes", ",".join(map(str, sizes)), "--out", str(out)]
        beside = ["--vs", ",".join(peers)] if peers else []
        status = subprocess.run([*job, *what, *beside], check=False).returncode
        if status != 0:
            raise typer.Exit(1)
        found: list[dict[str, Any]] = json.loads(out.read_text())
        return found


def _show(machine: dict[str, float | None], rows: list[dict[str, Any]], peers: list[str]) -> None:
    table = Table(title="all_reduce, float32 SUM, microseconds: median (10 % to 90 %)")
    for column in ("ranks", "bytes", "allhands", *peers, *(f"{name} / allhands" for name in peers)):
        table.add_column(column, justify="right", no_wrap=True)
    cells = {(row["ranks"], row["bytes"], row["peer"]): row for row in rows}
    for ranks, nbytes in dict.fromkeys((row["ranks"], row["bytes"]) for row in rows):
        own = cells[ranks, nbytes, "allhands"]
        others = [cells[ranks, nbytes, name] for name in peers]
        ratios = [f"{other['median'] / own['median']:.2f}" for other in others]
        table.add_row(str(ranks), f"{nbytes:,}", *map(_cell, [own, *others]), *ratios)
    console = Console()
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    console.print(table)
    cores = machine["cross_core_read_gbs"]
    console.print(
        f"this machine, now: a core reads what another wrote at "
        f"{'-' if cores is None else f'{cores:.0f}'} GB/s, "
        f"memory copies at {machine['memory_copy_gbs']:.0f} GB/s"
    )


def _cell(row: dict[str, Any]) -> str:
    low, middle, high = (row[name] * 1e6 for name in ("low", "median", "high"))
    return f"{middle:,.0f} ({low:,.0f} to {high:,.0f})"


def _number(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise typer.BadParameter(f"{text!r} is not a number of ranks")
    return int(text)


def _nbytes(text: str) -> int:
    digits = text.rstrip("BbKkMmGgIi")
    unit = text[len(digits) :].upper()
    if not digits.isdigit() or unit not in _UNITS:
        raise typer.BadParameter(f"{text!r} is not a size; write 8B, 64KiB, 1MiB")
    return int(digits) * _UNITS[unit]
