"""`allhands bench`: times of operations, beside Gloo and MPI."""

import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import typer

from allhands.bench import case as cells
from allhands.bench.systems import ALLHANDS, MPI, PEERS
from allhands.bench.table_request import TableRequest, TwoHosts
from allhands.bench.tables import TABLES
from allhands.cli.progress import show_progress
from allhands.cli.render import Output, make_output_option, print_document

if TYPE_CHECKING:
    from allhands.bench.launchers import Launcher, PythonPaths
    from allhands.bench.report import Report

T = TypeVar("T")

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_RANKS = "2,4"
_ALL_SIZES = "8B,1KiB,64KiB,1MiB,16MiB,64MiB"


_OpsOption: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="LIST",
        help=f"Operations, comma-separated: {', '.join(cells.CONVENTIONS)}; all: those "
        f"that every contender has; of whole jobs: {', '.join(cells.WHOLE_JOBS)}.",
    ),
]

_TablesOption: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="LIST",
        help="Measure tables of docs/performance.md, with operations, sizes, ranks and systems of "
        f"their own: {', '.join(TABLES)}; all. --ranks, --vs and --variants then choose from "
        "these.",
    ),
]

_RanksOption: TypeAlias = Annotated[
    str, typer.Option(metavar="LIST", help=f"Numbers of ranks, comma-separated; default {_RANKS}.")
]

_SizesOption: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="LIST",
        help=f"Bytes of the array that each rank brings, comma-separated; all: {_ALL_SIZES}.",
    ),
]

_DtypesOption: TypeAlias = Annotated[
    str, typer.Option(metavar="LIST", help=f"Types, comma-separated: {', '.join(cells.DTYPES)}.")
]

_VsOption: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="LIST", help=f"Peers to measure beside: {', '.join(PEERS)}; mpi: what is there."
    ),
]

_VariantsOption: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="LIST", help=f"Ways to use allhands: {', '.join(ALLHANDS)}; default allhands."
    ),
]

_BudgetOption: TypeAlias = Annotated[
    float,
    typer.Option(
        metavar="SECONDS", min=0.0, help="Seconds for each cell of the table; 5 rounds at least."
    ),
]

_GlooPythonOption: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="COMMAND",
        envvar="ALLHANDS_BENCH_GLOO_PYTHON",
        help="A Python with torch; else this.",
    ),
]

_OpenmpiPythonOption: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="COMMAND",
        envvar="ALLHANDS_BENCH_OPENMPI_PYTHON",
        help="A Python with mpi4py for Open MPI; else this.",
    ),
]

_MpichPythonOption: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="COMMAND",
        envvar="ALLHANDS_BENCH_MPICH_PYTHON",
        help="A Python with mpi4py for MPICH; else this.",
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
    str,
    typer.Option(
        metavar="RATE", help="With --netns, what the cable carries: 1gbit, 10gbit, ...; none."
    ),
]

_RanksPerHostOption: TypeAlias = Annotated[
    int,
    typer.Option(metavar="N", min=1, help="With --netns, how many ranks each of the hosts has."),
]

_PlotOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", dir_okay=False, help="Draw latency and bandwidth by size; FILE.png or .svg."
    ),
]

_LoadOption: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="Measure nothing; show what was saved. May be repeated.",
    ),
]

_SaveOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="FILE", dir_okay=False, help="Write the result as JSON to this file too."),
]

_OutputOption: TypeAlias = Annotated[
    Output, make_output_option(Output.TABLE, Output.JSON, Output.YAML)
]


def bench_command(
    ops: _OpsOption = "all_reduce",
    tables: _TablesOption = "",
    ranks: _RanksOption = "",
    sizes: _SizesOption = "8B,1MiB,64MiB",
    dtypes: _DtypesOption = "float32",
    vs: _VsOption = "",
    variants: _VariantsOption = "",
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
    output: _OutputOption = Output.TABLE,
) -> None:
    """Time collective operations; systems take turns in one run, ranks are processes.

    Every result is checked: a system with a wrong result gets no figure, and the command fails.
    Ratios above 1 say how many times faster allhands was.
    """
    if plot is not None:
        _require_plot()
        if tables:
            raise typer.BadParameter("--plot draws one run, without --tables")
    pythons = {"gloo": gloo_python, "openmpi": openmpi_python, "mpich": mpich_python}
    # Whoever ends this process means its ranks too: that takes the way of an exception.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if load:
        result = _load_reports(load)
    elif tables:
        result = _measure_named(tables, ranks, variants, vs, pythons, budget, save)
    else:
        launchers = _find_launchers(variants or "allhands", vs, pythons)
        if netns:
            _refuse_mpi(launchers)
        request = TableRequest(
            cells.COLLECTIVES if ops == "all" else tuple(_parse_list(ops, _parse_operation)),
            tuple(_parse_list(ranks or _RANKS, _parse_rank_count)),
            tuple(_parse_list(_ALL_SIZES if sizes == "all" else sizes, _parse_nbytes)),
            tuple(_parse_list(dtypes, _parse_dtype)),
            TwoHosts(_parse_rate(rate), ranks_per_host) if netns else None,
        )
        result = _measure(request, launchers, budget)
    _write(result, save, plot, output)
    _fail_if_wrong(result)


def _measure_named(
    tables: str,
    ranks: str,
    variants: str,
    vs: str,
    pythons: dict[str, str],
    budget: float,
    save: Path | None,
) -> "Report":
    """Measure tables by their names; what was measured is saved after each."""
    names = list(TABLES) if tables == "all" else _parse_list(tables, _parse_table)
    counts = _parse_list(ranks, _parse_rank_count) if ranks else None
    own = _parse_list(variants, _parse_variant) if variants else None
    peers = _parse_list(vs, _parse_peer) if vs else None
    if peers is not None and "mpi" in peers:
        peers += MPI
    measured: dict[str, Report] = {}
    for name in names:
        table = TABLES[name].choose(counts, own, peers)
        launchers = _find_present((*table.variants, *table.peers), pythons)
        if not (table.request.rank_counts and launchers):
            typer.echo(f"allhands: nothing to measure in table {name}", err=True)
            continue
        try:
            measured[name] = _measure(table.request, launchers, budget)
        except typer.BadParameter as refusal:
            typer.echo(f"allhands: no table {name}: {refusal.message}", err=True)
            continue
        if save is not None:
            save.write_text(json.dumps({"tables": measured}, indent=1) + "\n")
    return {"tables": measured}


def _find_present(systems: Sequence[str], pythons: dict[str, str]) -> list["Launcher"]:
    """Find the launchers of the systems that can be measured here, and say which cannot."""
    from allhands.bench.launchers import PythonPaths, SystemMissing, find_launcher

    known = PythonPaths({name: python for name, python in pythons.items() if python})
    found = []
    for name in systems:
        try:
            found.append(find_launcher(name, known))
        except SystemMissing as missing:
            typer.echo(f"allhands: left out: {missing}", err=True)
    return found


def _write(result: "Report", save: Path | None, plot: Path | None, output: Output) -> None:
    if save is not None:
        save.write_text(json.dumps(result, indent=1) + "\n")
    if plot is not None:
        if "tables" in result:
            raise typer.BadParameter("--plot draws one run, without --tables")
        _plot(result, plot)
    if output.is_document:
        print_document("BenchReport", {**result}, output)
    else:
        _print_table(result)


def _load_reports(paths: Sequence[Path]) -> "Report":
    """Merge saved results."""
    from allhands.bench.report import merge_reports

    try:
        loaded = [json.loads(path.read_text()) for path in paths]
        named = [one["tables"] for one in loaded if "tables" in one]
        if len(named) not in (0, len(loaded)):
            raise ValueError("some of these are runs with --tables, and some without")
        if named:
            return {"tables": {name: table for one in named for name, table in one.items()}}
        return merge_reports(loaded)
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

    for name, report in _list_reports(result):
        if name:
            typer.echo(f"\n{name}")
        show(report, Console())


def _list_reports(result: "Report") -> list[tuple[str, "Report"]]:
    """Return the reports of a run, with the names of their tables, where they have names."""
    return list(result["tables"].items()) if "tables" in result else [("", result)]


def _fail_if_wrong(result: "Report") -> None:
    """Exit with 1 if a system failed or gave a wrong result."""
    from allhands.bench.report import list_failures

    failures = [found for _, one in _list_reports(result) for found in list_failures(one).items()]
    for name, reason in failures:
        typer.echo(f"allhands: {name} failed: {reason}", err=True)
    if failures:
        raise typer.Exit(1)


def _measure(request: TableRequest, launchers: Sequence["Launcher"], budget: float) -> "Report":
    from allhands.bench.netns import NoNamespaces
    from allhands.bench.runs import measure_table

    for dtype in request.dtypes:
        if max(request.rank_counts) > cells.max_ranks(dtype):
            raise typer.BadParameter(
                f"sums of {dtype} are exact for {cells.max_ranks(dtype)} ranks at most"
            )
    try:
        with show_progress(request.count_steps()) as say:
            return measure_table(request, launchers, budget, say)
    except NoNamespaces as error:
        raise typer.BadParameter(str(error), param_hint="--netns") from error


def _parse_rate(text: str) -> str | None:
    from allhands.bench.netns import check_rate

    try:
        return check_rate(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--rate") from error


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
    return _check_known(text, (*cells.CONVENTIONS, *cells.WHOLE_JOBS), "operation")


def _parse_table(text: str) -> str:
    return _check_known(text, tuple(TABLES), "table")


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
