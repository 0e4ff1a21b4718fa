"""`python -m allhands.bench.store`: the key-value store against TCPStore and etcd.

All contenders take turns in one run, and check what they read. Four loads: one client with one
call at a time (latency), several such clients in as many processes, eight times as many on threads
of these, and several clients that keep 64 calls under way each.

`txn` sets a key if present, `event` lasts from a set to its arrival at a watcher in the same
process, `lock` is a lock of the client's own taken and released, `contend` the same with one lock
for all clients of the load, and `barrier` a barrier of them.
`server us` is CPU time of the server for a call: its inverse is calls a second and core.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from allhands.bench.store_servers import SERVERS, StoreServer, find_missing

OPERATIONS = ("set", "get", "add", "txn", "event", "lock", "contend", "barrier")
CONCURRENT = ("set", "get", "add", "txn")
THREADS = 8
OUTSTANDING = 64

_GRPC = "allhands by gRPC"
_DURABLE = "allhands, durable"
_OWN = ("allhands", _DURABLE)
_SUPPORTED = {  # alone, together
    "allhands": (OPERATIONS, CONCURRENT),
    _DURABLE: (OPERATIONS, CONCURRENT),
    _GRPC: (("set", "get", "add", "txn", "event", "lock", "contend"), ()),
    "tcpstore": (("get", "add", "txn", "event", "barrier"), ()),
    "etcd": (("set", "get", "txn", "event", "lock", "contend", "barrier"), ("set", "get", "txn")),
}


@dataclass(frozen=True, slots=True)
class Load:
    """A number of clients, and the calls that each keeps under way."""

    processes: int
    threads: int
    outstanding: int

    @property
    def clients(self) -> int:
        return self.processes * self.threads


@dataclass
class MeasuredStore:
    """A server with its clients, which wait for commands."""

    name: str
    server: StoreServer
    clients: "list[subprocess.Popen[str]]"

    def supports(self, operation: str, outstanding: int) -> bool:
        return operation in _SUPPORTED[self.name][outstanding > 1]

    def measure(self, operation: str, load: Load, seconds: float) -> dict[str, float]:
        """Load the server once; return calls a second, and seconds for each."""
        command = {
            "operation": operation,
            "threads": load.threads,
            "outstanding": load.outstanding,
            "seconds": seconds,
            "clients": load.clients,
            "barrier": f"barrier {time.monotonic_ns()}",
        }
        before = self.server.read_cpu_seconds()
        for number, client in enumerate(self.clients[: load.processes]):
            assert client.stdin is not None
            client.stdin.write(json.dumps({**command, "first": number * load.threads}) + "\n")
            client.stdin.flush()
        found = [one for client in self.clients[: load.processes] for one in _read_result(client)]
        calls = sum(one["calls"] for one in found)
        measured = {
            "per_second": sum(one["calls"] / one["seconds"] for one in found),
            "server_cpu": (self.server.read_cpu_seconds() - before) / calls,
        }
        if load.outstanding == 1:
            measured["median"] = statistics.median(one["median"] for one in found)
        return measured


def _read_result(client: "subprocess.Popen[str]") -> list[dict[str, float]]:
    assert client.stdout is not None
    if not (line := client.stdout.readline()):
        raise RuntimeError(f"a client ended with status {client.wait()}")
    found: list[dict[str, float]] = json.loads(line)
    return found


@contextmanager
def open_clients(name: str, server: StoreServer, clients: int) -> Iterator[MeasuredStore]:
    """Start the clients of a server; end them on exit."""
    with ExitStack() as stack:
        started = []
        for number in range(clients):
            command = [sys.executable, "-m", "allhands.bench.store_clients", "--contender", name]
            command += ["--name", f"{name} {number}", "--port", str(server.port)]
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.terminate)
            assert process.stdin is not None
            process.stdin.write(server.token + "\n")
            process.stdin.flush()
            started.append(process)
        for process in started:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"a client of {name} did not start")
        yield MeasuredStore(name, server, started)


def run(vs: Sequence[str], clients: int, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Measure every cell `rounds` times, all contenders of a cell in turn; return the medians."""
    found: dict[tuple[Load, str, str], list[dict[str, float]]] = {}
    loads = (
        Load(1, 1, 1),
        Load(clients, 1, 1),
        Load(clients, THREADS, 1),
        Load(clients, 1, OUTSTANDING),
    )
    with ExitStack() as stack:
        contenders = []
        for name in (*_OWN, *vs):
            server = stack.enter_context(SERVERS[name]())
            for way in ("allhands", _GRPC) if name == "allhands" else (name,):
                contenders.append(stack.enter_context(open_clients(way, server, clients)))
        for _ in range(rounds):
            for load in loads:
                for operation in OPERATIONS:
                    for one in contenders:
                        if one.supports(operation, load.outstanding):
                            measured = one.measure(operation, load, seconds)
                            found.setdefault((load, operation, one.name), []).append(measured)
    return [_make_row(*cell, samples) for cell, samples in found.items()]


def _make_row(
    load: Load, operation: str, name: str, samples: Sequence[dict[str, float]]
) -> dict[str, Any]:
    rates = [one["per_second"] for one in samples]
    row: dict[str, Any] = {
        "clients": load.clients,
        "outstanding": load.outstanding,
        "operation": operation,
        "contender": name,
        "per_second": statistics.median(rates),
        "low": min(rates),
        "high": max(rates),
        "server_cpu": statistics.median(one["server_cpu"] for one in samples),
        "rounds": len(samples),
    }
    if load.outstanding == 1:
        row["latency"] = statistics.median(one["median"] for one in samples)
    return row


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print a table; ratios above 1 say how many times better allhands was."""
    table = Table(title="key-value store, values of 20 bytes: medians")
    for column in ("clients x calls", "operation", "store"):
        table.add_column(column, no_wrap=True)
    for column in ("latency us", "calls/s", "low to high", "server us", "calls/s / store's"):
        table.add_column(column, justify="right")
    own = {
        (row["clients"], row["outstanding"], row["operation"]): row["per_second"]
        for row in rows
        if row["contender"] == "allhands"
    }
    for row in rows:
        ratio = own[row["clients"], row["outstanding"], row["operation"]] / row["per_second"]
        table.add_row(
            f"{row['clients']} x {row['outstanding']}",
            row["operation"],
            row["contender"],
            f"{row['latency'] * 1e6:,.0f}" if "latency" in row else "",
            f"{row['per_second']:,.0f}",
            f"{row['low']:,.0f} to {row['high']:,.0f}",
            f"{row['server_cpu'] * 1e6:,.1f}",
            "" if row["contender"] == "allhands" else f"{ratio:.2f}",
        )
    console = Console()
    if not console.is_terminal:
        console.width = 140
    console.print(table)


def main() -> None:
    others = [name for name in SERVERS if name not in _OWN]
    found = ",".join(name for name in others if find_missing(name) is None)
    parser = argparse.ArgumentParser(prog="python -m allhands.bench.store")
    parser.add_argument(
        "--vs", default=found, help=f"of {', '.join(others)}; default: those that are here"
    )
    parser.add_argument("--clients", type=int, default=8, help="beside the load of a single one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each load in each round")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    arguments = parser.parse_args()
    vs = [name for name in arguments.vs.split(",") if name]
    for name in vs:
        if name not in others:
            parser.error(f"no contender {name!r}; there are: {', '.join(others)}")
        if (needed := find_missing(name)) is not None:
            parser.error(f"{name} needs {needed}")
    if arguments.clients < 2 or arguments.rounds < 1 or arguments.seconds <= 0:
        parser.error("at least two clients, and one round of some length")
    rows = run(vs, arguments.clients, arguments.rounds, arguments.seconds)
    if arguments.output == "json":
        sys.stdout.write(json.dumps({"rows": rows}, indent=2) + "\n")
    else:
        show(rows)


if __name__ == "__main__":
    main()
