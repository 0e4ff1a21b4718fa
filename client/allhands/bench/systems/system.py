"""The contract between a rank of the benchmark and the system that it runs."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from allhands.bench.case import BenchCase
from allhands.bench.data import Array

Call = Callable[[], Any]


class Unsupported(Exception):
    """This contender does not do this; says why."""


class Repeat(Protocol):
    """Makes a call several times in a row, as the system's users would."""

    def __call__(
        self, call: Call, calls: int, start: Call, before_last: Call | None = None
    ) -> tuple[float, Any]:
        """Make `calls` calls after `start()`; return their seconds and what the last returned.

        `before_last()` runs before the last call, within the time.
        """


def repeat_plainly(
    call: Call, calls: int, start: Call, before_last: Call | None = None
) -> tuple[float, Any]:
    """Repeat a call that returns at its end."""
    start()
    begun = time.perf_counter()
    for _ in range(calls - 1):
        call()
    if before_last is not None:
        before_last()
    result = call()
    return time.perf_counter() - begun, result


@dataclass(frozen=True, slots=True)
class BoundCall:
    """A case's call on its arrays, ready to be timed."""

    call: Call
    """For sendrecv a round trip."""
    read: Callable[[Any], Array] | None = None
    """Gives the result from what the call returned; None: it is in the arrays."""
    refresh: Call | None = None
    """Takes in the values of the input array after they have changed, outside the time."""
    repeat: Repeat = repeat_plainly


class System(Protocol):
    """One rank of a benchmarked system."""

    rank: int
    size: int
    about: dict[str, str]
    """What it is, with versions."""

    def allocate(self, elements: int, dtype: str) -> Array:
        """Allocate an array the way the system's users would."""

    def bind(self, case: BenchCase, x: Array, out: Array, seed: int) -> Call | BoundCall:
        """Return the call of the case's operation.

        A model that is trained has the weights of that `seed`.

        Raises:
            Unsupported: it has no such operation, or no such dtype.
        """

    def get_variant(self) -> str | None:
        """Return the algorithm of the latest call, if known."""

    def close(self) -> None: ...


def make_round_trip(
    rank: int, send: Callable[[int], object], receive: Callable[[int], object]
) -> Call:
    def send_first() -> None:
        send(1)
        receive(1)

    def receive_first() -> None:
        receive(0)
        send(0)

    return send_first if rank == 0 else receive_first


def make_batch(module: Any, rank: int, size: int, x: Any, out: Any) -> Call:
    """Return the call of an exchange, with a module that has torch.distributed's names."""
    batch = [
        module.P2POp(module.isend, x, (rank + 1) % size),
        module.P2POp(module.irecv, out, (rank - 1) % size),
    ]

    def call() -> None:
        for work in module.batch_isend_irecv(batch):
            work.wait()

    return call


def concatenate(arrays: Any) -> Array:
    """Return arrays of any shapes as one flat array."""
    flat: Array = np.concatenate([np.asarray(one).reshape(-1) for one in arrays])
    return flat
