"""`python -m allhands.bench.sessions`: worlds of many ranks at one coordinator.

The sessions of all ranks are in a few processes beside a real `allhands serve`. For each operation
there is the time until the last rank is through, and the CPU time of the coordinator. `MiB` is its
memory then; at rest it comes with the share of a core that heartbeats cost. `unwanted` counts
probes and conditions, which nobody gives cause for.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from allhands.bench.store_servers import StoreServer, run_allhands

OPERATIONS = (
    *("join", "monitored barrier", "named barrier", "new group"),
    *("monitored barrier again", "rest", "failure of one", "end"),
)
_PROCESSES = 2
_REST = 5.0
"""Seconds for which the ranks only beat."""
_UNWANTED = ("probe", "condition", "conditions", "indirect_probe")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class MeasuredWorld:
    """Processes with the sessions of a world; measures its operations."""

    def __init__(self, server: StoreServer, clients: "list[subprocess.Popen[str]]") -> None:
        self._server = server
        self._clients = clients
        self._heard: Counter[str] = Counter()

    def measure(self, operation: str, rest: float) -> dict[str, float]:
        """Carry out an operation; return its seconds, CPU seconds, and memory in bytes after it."""
        begun, used = time.monotonic(), self._server.read_cpu_seconds()
        if operation == "rest":
            time.sleep(rest)  # what is measured is what comes by itself
            self._ask("count")
        else:
            self._ask(operation.removesuffix(" again"))
        return {
            "seconds": time.monotonic() - begun,
            "cpu": self._server.read_cpu_seconds() - used,
            "memory": read_memory(self._server.pid),
        }

    def count_unwanted(self) -> int:
        """Return the number of probes and conditions so far."""
        return sum(self._heard[kind] for kind in _UNWANTED)

    def _ask(self, command: str) -> None:
        for client in self._clients:
            assert client.stdin is not None
            client.stdin.write(json.dumps(command) + "\n")
            client.stdin.flush()
        self._heard = sum((Counter(read_line(client)) for client in self._clients), Counter())


def read_line(client: "subprocess.Popen[str]") -> dict[str, int]:
    assert client.stdout is not None
    if not (line := client.stdout.readline()):
        raise RuntimeError(f"a process with sessions ended with status {client.wait()}")
    found: dict[str, int] = json.loads(line)
    return found


def read_memory(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


@contextmanager
def open_sessions(server: StoreServer, size: int) -> Iterator[MeasuredWorld]:
    """Start the processes with the sessions; end them on exit."""
    with ExitStack() as stack:
        clients = []
        for first in range(_PROCESSES):
            command = [sys.executable, "-m", "allhands.bench.session_clients"]
            command += ["--target", f"127.0.0.1:{server.port}", "--size", str(size)]
            command += ["--first", str(first), "--step", str(_PROCESSES)]
            client = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(client.kill)
            assert client.stdin is not None
            client.stdin.write(server.token + "\n")
            client.stdin.flush()
            clients.append(client)
        for client in clients:
            assert client.stdout is not None
            if client.stdout.readline() != "ready\n":
                raise RuntimeError("a process with sessions did not start")
        yield MeasuredWorld(server, clients)


def run_once(size: int, *, durable: bool, rest: float) -> dict[str, Any]:
    """Measure all operations of one world at a coordinator of its own."""
    with ExitStack() as stack:
        server = stack.enter_context(run_allhands(is_durable=durable))
        empty = read_memory(server.pid)
        world = stack.enter_context(open_sessions(server, size))
        found = {name: world.measure(name, rest) for name in OPERATIONS}
        return {
            "operations": found,
            "unwanted": world.count_unwanted(),
            "memory_a_session": (found["rest"]["memory"] - empty) / size,
        }


def run(sizes: Sequence[int], rounds: int, *, durable: bool, rest: float) -> list[dict[str, Any]]:
    """Measure every size `rounds` times, sizes in turn; return medians by size and operation."""
    found: dict[int, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for size in sizes:
            found.setdefault(size, []).append(run_once(size, durable=durable, rest=rest))
    return [
        make_row(size, name, durable, samples)
        for size, samples in found.items()
        for name in OPERATIONS
    ]


def make_row(
    size: int, operation: str, durable: bool, samples: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    cells = [one["operations"][operation] for one in samples]
    row: dict[str, Any] = {"size": size, "operation": operation, "durable": durable}
    for name in ("seconds", "cpu", "memory"):
        row[name] = statistics.median(one[name] for one in cells)
    row["low"] = min(one["seconds"] for one in cells)
    row["high"] = max(one["seconds"] for one in cells)
    row["unwanted"] = max(one["unwanted"] for one in samples)
    row["memory_a_session"] = statistics.median(one["memory_a_session"] for one in samples)
    row["rounds"] = len(samples)
    return row


def make_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="sessions at one coordinator: medians")
    for column in ("ranks", "log", "operation"):
        table.add_column(column, no_wrap=True)
    for column in ("seconds", "low to high", "CPU s", "MiB", "KiB a session", "unwanted"):
        table.add_column(column, justify="right")
    for row in rows:
        is_rest = row["operation"] == "rest"
        share = f"{row['cpu'] / row['seconds']:.1%} of a core"
        table.add_row(
            f"{row['size']:,}",
            "sqlite" if row["durable"] else "memory",
            row["operation"],
            "" if is_rest else f"{row['seconds']:.2f}",
            "" if is_rest else f"{row['low']:.2f} to {row['high']:.2f}",
            share if is_rest else f"{row['cpu']:.2f}",
            f"{row['memory'] / (1 << 20):,.0f}",
            f"{row['memory_a_session'] / 1024:,.0f}" if is_rest else "",
            f"{row['unwanted']}" if is_rest else "",
        )
    return table


def show(rows: Sequence[dict[str, Any]]) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = 120
    console.print(make_table(rows))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m allhands.bench.sessions")
    parser.add_argument("--sizes", default="250,500,1000,2000", help="ranks of the worlds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--rest", type=float, default=_REST, help="seconds in which ranks only beat"
    )
    parser.add_argument("--durable", action="store_true", help="the coordinator keeps a log")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    arguments = parser.parse_args()
    try:
        sizes = [int(one) for one in arguments.sizes.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < _PROCESSES or arguments.rounds < 1 or arguments.rest <= 0:
        parser.error(f"sizes from {_PROCESSES} on, and one round of some length")
    rows = run(sizes, arguments.rounds, durable=arguments.durable, rest=arguments.rest)
    if arguments.output == "json":
        sys.stdout.write(json.dumps({"rows": rows}, indent=2) + "\n")
    else:
        show(rows)


if __name__ == "__main__":
    main()
