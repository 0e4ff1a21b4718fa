"""`allhands bench`: times of operations, beside Gloo and MPI."""

import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import typer

from allhands.bench import case as cells
from allhands.bench.systems import ALLHANDS, MPI, PEERS

if TYPE_CHECKING:
    from allhands.bench.launchers import BenchHost, Launcher, PythonPaths
    from allhands.bench.report import Link, Report

T = TypeVar("T")

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_ALL_SIZES = "8B,1KiB,64KiB,1MiB,16MiB,64MiB"


_OpsOption: TypeAlias = Annotated[
    str,
    typer.Option(
        help=f"Operations, comma-separated: {', '.join(cells.CONVENTIONS)}; all: those "
        "that every contender has."
    ),
]

_RanksOption: TypeAlias = Annotated[str, typer.Option(help="Numbers of ranks, comma-separated.")]

_SizesOption: TypeAlias = Annotated[
    str,
    typer.Option(
        help=f"Bytes of the array that each rank brings, comma-separated; all: {_ALL_SIZES}."
    ),
]

_DtypesOption: TypeAlias = Annotated[
    str, typer.Option(help=f"Types, comma-separated: {', '.join(cells.DTYPES)}.")
]

_VsOption: TypeAlias = Annotated[
    str, typer.Option(help="Peers to measure beside: gloo, openmpi, mpich; mpi: what is there.")
]

_VariantsOption: TypeAlias = Annotated[
    str, typer.Option(help=f"Ways to use allhands: {', '.join(ALLHANDS)}.")
]

_BudgetOption: TypeAlias = Annotated[
    float, typer.Option(min=0.0, help="Seconds for each cell of the table; 5 rounds at least.")
]

_GlooPythonOption: TypeAlias = Annotated[
    str,
    typer.Option(envvar="ALLHANDS_BENCH_GLOO_PYTHON", help="A Python with torch; else this."),
]

_OpenmpiPythonOption: TypeAlias = Annotated[
    str,
    typer.Option(
        envvar="ALLHANDS_BENCH_OPENMPI_PYTHON",
        help="A Python with mpi4py for Open MPI; else this.",
    ),
]

_MpichPythonOption: TypeAlias = Annotated[
    str,
    typer.Option(
        envvar="ALLHANDS_BENCH_MPICH_PYTHON", help="A Python with mpi4py for MPICH; else this."
    ),
]

_NetnsOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--netns",
        help="Measure between two hosts, made of network namespaces; as root, beside gloo.",
    ),
]

_RateOption: TypeAlias = Annotated[
    str, typer.Option(help="With --netns, what the cable carries: 1gbit, 10gbit, ...; none.")
]

_RanksPerHostOption: TypeAlias = Annotated[
    int, typer.Option(min=1, help="With --netns, how many ranks each of the hosts has.")
]

_PlotOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(dir_okay=False, help="Draw latency and bandwidth by size; FILE.png or .svg."),
]

_LoadOption: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        help="Measure nothing; show what was saved. May be repeated.",
    ),
]

_SaveOption: TypeAlias = Annotated[
    Path | None, typer.Option(dir_okay=False, help="Write the result as JSON to this file too.")
]

_OutputOption: TypeAlias = Annotated[
    str, typer.Option("-o", "--output", help="How to print the result: table or json.")
]


def bench_command(
    ops: _OpsOption = "all_reduce",
    ranks: _RanksOption = "2,4",
    sizes: _SizesOption = "8B,1MiB,64MiB",
    dtypes: _DtypesOption = "float32",
    vs: _VsOption = "",
    variants: _VariantsOption = "allhands",
    budget: _BudgetOption = 2.0,
    gloo_python: _GlooPythonOption = "",
    openmpi_python: _OpenmpiPythonOption = "",
    mpich_python: _MpichPythonOption = "",
    netns: _NetnsOption = False,
    rate: _RateOption = "1gbit",
    ranks_per_host: _RanksPerHostOption = 1,
    plot: _PlotOption = None,
    load: _LoadOption = None,
    save: _SaveOption = None,
    output: _OutputOption = "table",
) -> None:
    """Time collective operations; systems take turns in one run, ranks are processes.

    Every result is checked: a system with a wrong result gets no figure, and the command fails.
    Ratios above 1 say how many times faster allhands was.
    """
    if output not in ("table", "json"):
        raise typer.BadParameter(f"--output is table or json, not {output!r}")
    if plot is not None:
        _require_plot()
    if load:
        result = _load_reports(load)
    else:
        pythons = {"gloo": gloo_python, "openmpi": openmpi_python, "mpich": mpich_python}
        launchers = _find_launchers(variants, vs, pythons)
        counts = _parse_list(ranks, _parse_rank_count)
        if netns:
            counts = [2 * ranks_per_host]
            _refuse_mpi(launchers)
        table = _Table(
            list(cells.COLLECTIVES) if ops == "all" else _parse_list(ops, _parse_operation),
            counts,
            _parse_list(_ALL_SIZES if sizes == "all" else sizes, _parse_nbytes),
            _parse_list(dtypes, _parse_dtype),
        )
        # Whoever ends this process means its ranks too: that takes the way of an exception.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        with _open_hosts(netns, rate) as (hosts, link):
            result = _measure(table, launchers, budget, hosts, link)
    _write(result, save, plot, output)
    _fail_if_wrong(result)


def _write(result: "Report", save: Path | None, plot: Path | None, output: str) -> None:
    if save is not None:
        save.write_text(json.dumps(result, indent=1) + "\n")
    if plot is not None:
        _plot(result, plot)
    if output == "json":
        typer.echo(json.dumps(result, indent=2))
    else:
        _print_table(result)


def _load_reports(paths: Sequence[Path]) -> "Report":
    """Merge saved results."""
    from allhands.bench.report import merge_reports

    try:
        return merge_reports([json.loads(path.read_text()) for path in paths])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--load") from error


def _refuse_mpi(launchers: Sequence["Launcher"]) -> None:
    """Refuse to measure MPI between network namespaces."""
    if strangers := [one.system for one in launchers if one.system in MPI]:
        raise typer.BadParameter(
            f"between namespaces only gloo is measured beside, not {strangers}",
            param_hint="--vs",
        )


def _print_table(result: "Report") -> None:
    from rich.console import Console

    from allhands.bench.report import show

    show(result, Console())


def _fail_if_wrong(result: "Report") -> None:
    """Exit with 1 if a system failed or gave a wrong result."""
    from allhands.bench.report import list_failures

    if failures := list_failures(result):
        for name, reason in failures.items():
            typer.echo(f"allhands: {name} failed: {reason}", err=True)
        raise typer.Exit(1)


class _Table:
    """The requested cases."""

    def __init__(
        self, operations: list[str], ranks: list[int], sizes: list[int], dtypes: list[str]
    ) -> None:
        for dtype in dtypes:
            if max(ranks) > cells.max_ranks(dtype):
                raise typer.BadParameter(
                    f"sums of {dtype} are exact for {cells.max_ranks(dtype)} ranks at most"
                )
        self.ranks = ranks
        self._axes = operations, sizes, dtypes

    def list_cases(self, ranks: int) -> list[cells.BenchCase]:
        operations, sizes, dtypes = self._axes
        return cells.list_cases(operations, ranks, sizes, dtypes)


def _measure(
    table: _Table,
    launchers: Sequence["Launcher"],
    budget: float,
    hosts: "Sequence[BenchHost]",
    link: "Link",
) -> "Report":
    from dataclasses import asdict

    from allhands.bench import machine
    from allhands.bench.driver import start_bench
    from allhands.bench.report import Row, make_report, make_rows

    rows: list[Row] = []
    contenders: dict[str, dict[str, str]] = {}
    limits = [asdict(machine.measure())]
    for ranks in table.ranks:
        with start_bench(launchers, ranks, hosts) as running:
            contenders |= running.about
            for cell in table.list_cases(ranks):
                what = f"{cell.operation}, {ranks} ranks, {cell.nbytes:,} bytes, {cell.dtype}"
                typer.echo(f"measuring {what}", err=True)
                rows += make_rows(running.measure(cell, budget))
    limits.append(asdict(machine.measure()))  # it may not be what it was
    return make_report(limits, contenders, rows, link)


@contextmanager
def _open_hosts(netns: bool, rate: str) -> Iterator[tuple["Sequence[BenchHost]", "Link"]]:
    """Open the hosts to measure on; yield them with the figures of the network."""
    from allhands.bench import tcp
    from allhands.bench.launchers import THIS_HOST
    from allhands.bench.netns import NoNamespaces, check_rate, open_two_hosts

    if not netns:
        yield (THIS_HOST,), {"name": "this host"}
        return
    try:
        limit = check_rate(rate)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--rate") from error
    try:
        with open_two_hosts(limit) as (first, second):
            plain = tcp.measure(
                first.address, here=second.command_prefix, there=first.command_prefix
            )
            name = f"two hosts, {'no limit' if limit is None else limit}"
            between = {"tcp_round_trip_us": plain.round_trip_us, "tcp_gbs": plain.gbs}
            yield (first, second), {"name": name, **between}
    except NoNamespaces as error:
        raise typer.BadParameter(str(error), param_hint="--netns") from error


def _require_plot() -> None:
    from allhands.bench.plot import NoPlot, require_matplotlib

    try:
        require_matplotlib()
    except NoPlot as error:
        raise typer.BadParameter(str(error), param_hint="--plot") from error


def _plot(result: "Report", path: Path) -> None:
    from allhands.bench.plot import NoPlot, plot

    try:
        plot(result, path)
    except NoPlot as error:
        typer.echo(f"allhands: no picture: {error}", err=True)
        raise typer.Exit(1) from error


def _find_launchers(variants: str, vs: str, pythons: dict[str, str]) -> list["Launcher"]:
    from allhands.bench.launchers import PythonPaths, SystemMissing, find_launcher

    known = PythonPaths({name: python for name, python in pythons.items() if python})
    names = [*_parse_list(variants, _parse_variant), *(_parse_list(vs, _parse_peer) if vs else [])]
    try:
        found = [find_launcher(name, known) for name in names if name != "mpi"]
    except SystemMissing as error:
        raise typer.BadParameter(str(error), param_hint="--vs, --variants") from error
    return found + (_find_any_mpi(known) if "mpi" in names else [])


def _find_any_mpi(pythons: "PythonPaths") -> list["Launcher"]:
    from allhands.bench.launchers import Launcher, SystemMissing, find_launcher

    found: list[Launcher] = []
    missing: list[str] = []
    for name in MPI:
        try:
            found.append(find_launcher(name, pythons))
        except SystemMissing as error:
            missing.append(str(error))
    if not found:
        raise typer.BadParameter("; ".join(missing), param_hint="--vs")
    return found


def _parse_list(text: str, parse: Callable[[str], T]) -> list[T]:
    """Parse a list with commas, each item once."""
    return list(dict.fromkeys(parse(item.strip()) for item in text.split(",")))


def _parse_operation(text: str) -> str:
    return _check_known(text, tuple(cells.CONVENTIONS), "operation")


def _parse_dtype(text: str) -> str:
    return _check_known(text, cells.DTYPES, "dtype")


def _parse_variant(text: str) -> str:
    return _check_known(text, ALLHANDS, "variant")


def _parse_peer(text: str) -> str:
    return _check_known(text, (*PEERS, "mpi"), "peer")


def _check_known(text: str, names: Sequence[str], what: str) -> str:
    if text not in names:
        raise typer.BadParameter(f"no {what} {text!r}; there are: {', '.join(names)}")
    return text


def _parse_rank_count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise typer.BadParameter(f"{text!r} is not a number of ranks")
    return int(text)


def _parse_nbytes(text: str) -> int:
    digits = text.rstrip("BbKkMmGgIi")
    unit = text[len(digits) :].upper()
    if not digits.isdigit() or unit not in _UNITS:
        raise typer.BadParameter(f"{text!r} is not a size; write 8B, 64KiB, 1MiB")
    return int(digits) * _UNITS[unit]
