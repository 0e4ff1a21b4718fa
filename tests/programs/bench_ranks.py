"""Ranks of systems under a benchmark, failing ranks, and a process holding hosts.

This is a script: its first argument names a function, the others are for that.
"""

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from allhands.bench import netns
from allhands.bench.ipc import JsonConnection
from allhands.bench.rank import serve
from allhands.bench.start_gate import StartGate

Array = npt.NDArray[Any]

_kept: list[Array] = []
"""What the call before gave."""


def _lie(x: Array) -> None:
    x[-1] += 1


def _give_the_last_result(x: Array) -> None:
    now = x.copy()
    x[:] = _kept[0] if _kept else now
    _kept[:] = [now]


def _choose(x: Array) -> None:
    if x.size == 2:
        raise TypeError("cannot reduce this")


CALLS: dict[str, Callable[[Array], object]] = {
    "honest": lambda x: None,
    "liar": _lie,
    "lazy": _give_the_last_result,
    "choosy": _choose,
    "mortal": lambda x: sys.exit("gone"),
    "out of memory": lambda x: sys.exit("no more memory"),
}
"""What becomes of an array whose sum in a world of one is itself, by who does it."""


class _Alone:
    """A world of one rank: the input is the sum."""

    rank, size = 0, 1

    def __init__(self, call: Callable[[Array], object]) -> None:
        self.about: dict[str, str] = {}
        self._call = call

    def allocate(self, elements: int, dtype: npt.DTypeLike) -> Array:
        return np.empty(elements, dtype)

    def get_variant(self) -> None:
        """Have none."""

    def close(self) -> None:
        """Hold nothing."""

    def bind(self, case: Any, x: Array, out: Array, seed: int) -> Callable[[], object]:
        return lambda: self._call(x)


def serve_alone(system: str, *arguments: str) -> None:
    folder = Path(arguments[arguments.index("--gate") + 1]).parent
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.fspath(folder / "driver"))
    alone: Any = _Alone(CALLS[system])
    serve(JsonConnection(connection), alone, StartGate(folder / "gate", 0, 1))


def hold_hosts() -> None:
    """Make hosts, print the pids that hold the namespaces, and wait for end of input."""
    try:
        with netns.open_two_hosts(None) as hosts:
            prefixes = [host.command_prefix for host in hosts]
            print(*(one[one.index("--target") + 1] for one in prefixes), flush=True)
            sys.stdin.read()
    except netns.NoNamespaces as refusal:
        print("refused:", refusal, flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
