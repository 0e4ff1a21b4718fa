"""Measurement of a table of the benchmark."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from allhands.bench import machine, sessions, start_up, tcp
from allhands.bench.driver import start_bench
from allhands.bench.launchers import THIS_HOST, BenchHost, Launcher
from allhands.bench.netns import open_two_hosts
from allhands.bench.ratios import Row
from allhands.bench.report import Link, Report, make_report, make_rows
from allhands.bench.table_request import TableRequest, TwoHosts

_SESSION_SECONDS = 2.0
"""For which the sessions at one coordinator only beat."""


Say = Callable[[str], None]


def measure_table(
    table: TableRequest, launchers: Sequence[Launcher], budget: float, say: Say
) -> Report:
    """Measure a table, with the machine's limits before and after and the load meanwhile.

    Args:
        budget: seconds for each case.
        say: is told what is measured next.

    Raises:
        NoNamespaces: the table is of two hosts, and there can be none.
    """
    limits = [asdict(machine.measure())]
    load = machine.LoadMeter()
    rows: list[Row] = []
    contenders: dict[str, dict[str, str]] = {}
    with _open_hosts(table.hosts) as (hosts, link):
        for ranks in table.rank_counts:
            if not (cases := table.list_cases(ranks)):
                continue
            with start_bench(launchers, ranks, hosts) as running:
                contenders |= running.about
                for case in cases:
                    size = f"{case.nbytes:,} bytes, {case.dtype}"
                    say(f"measuring {case.operation}, {ranks} ranks, {size}, {link['name']}")
                    rows += make_rows(running.measure(case, budget))
    jobs = _measure_start_up(table, launchers, budget, say)
    worlds = _measure_sessions(table, say)
    loads = [asdict(load.read())]
    limits.append(asdict(machine.measure()))  # it may not be what it was
    report = make_report(limits, contenders, rows, link)
    return report | {"load": loads, "start_up": jobs, "sessions": worlds}


def _measure_start_up(
    table: TableRequest, launchers: Sequence[Launcher], budget: float, say: Say
) -> list[Row]:
    if start_up.OPERATION not in table.operations:
        return []
    rows = []
    for ranks in table.ranks:
        say(f"measuring the start of {ranks} ranks")
        rows += start_up.measure(launchers, ranks, budget)
    return rows


def _measure_sessions(table: TableRequest, say: Say) -> list[Row]:
    if "sessions" not in table.operations:
        return []
    say(f"measuring sessions of {', '.join(map(str, table.ranks))} ranks")
    return sessions.run(table.ranks, 1, durable=False, rest=_SESSION_SECONDS)


@contextmanager
def _open_hosts(hosts: TwoHosts | None) -> Iterator[tuple[Sequence[BenchHost], Link]]:
    """Open the hosts to measure on; yield them with the figures of the network."""
    if hosts is None:
        yield (THIS_HOST,), {"name": "this host"}
        return
    with open_two_hosts(hosts.rate) as (first, second):
        plain = tcp.measure(first.address, here=second.command_prefix, there=first.command_prefix)
        name = f"two hosts, {'no limit' if hosts.rate is None else hosts.rate}"
        between = {"tcp_round_trip_us": plain.round_trip_us, "tcp_gbs": plain.gbs}
        yield (first, second), {"name": name, **between}
