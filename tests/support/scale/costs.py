"""Costs of a coordinator: CPU seconds by what it does, fitted to measured operations."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import add, mul

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Traffic:
    """What an operation takes: numbers of messages, and bytes."""

    sessions: float = 0.0
    """Streams that are opened."""
    calls: float = 0.0
    """Requests outside of sessions, each with its answer."""
    received: float = 0.0
    """Messages of sessions to the coordinator."""
    sent: float = 0.0
    """Messages of sessions from the coordinator."""
    received_nbytes: float = 0.0
    sent_nbytes: float = 0.0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(*map(add, self.list_amounts(), other.list_amounts()))

    def list_amounts(self) -> tuple[float, ...]:
        nbytes = self.received_nbytes, self.sent_nbytes
        return (self.sessions, self.calls, self.received, self.sent, *nbytes)

    @property
    def messages(self) -> float:
        return self.sessions + 2 * self.calls + self.received + self.sent


Costs = Traffic
"""Seconds of CPU for one of each."""


def price(traffic: Traffic, costs: Costs) -> float:
    """Return the CPU seconds of an operation."""
    return float(sum(map(mul, traffic.list_amounts(), costs.list_amounts())))


def fit_costs(measured: Sequence[tuple[Traffic, float]]) -> Costs:
    """Return the costs, none below 0, with the least squares of relative errors.

    `measured` has operations with their CPU seconds.
    """
    seconds = np.array([max(one, 1e-3) for _, one in measured])
    table = np.array([traffic.list_amounts() for traffic, _ in measured]) / seconds[:, None]
    scale = np.maximum(np.abs(table).max(axis=0), 1e-30)
    found = _fit_above_zero(table / scale, np.ones(len(seconds))) / scale
    return Costs(*(float(one) for one in found))


def _fit_above_zero(
    table: npt.NDArray[np.float64], wanted: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Solve least squares for amounts >= 0, one amount after the other until none changes."""
    found = np.zeros(table.shape[1])
    norms = (table * table).sum(axis=0)
    for _ in range(20_000):
        before = found.copy()
        for place in range(len(found)):
            if norms[place]:
                rest = wanted - table @ found + table[:, place] * found[place]
                found[place] = max(0.0, float(table[:, place] @ rest / norms[place]))
        if np.abs(found - before).max() < 1e-12:
            break
    return found


def describe_costs(costs: Costs) -> str:
    """Return the costs in microseconds of CPU, for a message or a MiB."""
    parts = []
    for one in fields(costs):
        value = getattr(costs, one.name)
        is_bytes = one.name.endswith("nbytes")
        amount = value * (1 << 20) * 1e3 if is_bytes else value * 1e6
        unit = "ms a MiB" if is_bytes else "us each"
        parts.append(f"{one.name} {amount:,.1f} {unit}")
    return ", ".join(parts)
