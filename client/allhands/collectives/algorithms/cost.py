"""Cost model of algorithms over links of known latency and bandwidth. Pure.

The model of Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in
MPICH", Int. J. High Perform. Comput. Appl. 19 (2005): every round costs the latency, every byte
that a rank sends or combines its time; ranks send and receive at once.
"""

import math

from allhands_proto.quick_dataclass import dataclass

COMBINED_PER_SECOND = 12e9
"""Bytes that one core adds up; it does 11 to 31 GB/s, the less the larger the arrays."""


@dataclass(frozen=True, slots=True)
class LinkCost:
    """Cost of messages between the ranks of a world; equal on all ranks."""

    latency: float
    """Seconds that a short message takes."""
    bandwidth: float
    """Bytes per second each way, while as many come the other way."""
    processors: float = math.inf
    """That a rank has to itself, on the host that has the fewest for each."""

    def __str__(self) -> str:
        return f"{self.latency * 1e6:.0f} us and streams run at {self.bandwidth / 1e6:.0f} MB/s"

    def estimate_seconds(self, rounds: float, sent: float, combined: float = 0.0) -> float:
        """Return the seconds of `rounds` rounds; `sent` and `combined` are bytes per rank."""
        return rounds * self.latency + sent / self.bandwidth + combined / COMBINED_PER_SECOND


def count_rounds(size: int) -> int:
    """Return how often `size` can be halved, rounded up."""
    return (size - 1).bit_length()


# ---------------------------------------------------------------- all_reduce of `nbytes`


def estimate_doubling(link_cost: LinkCost, size: int, nbytes: int) -> float:
    power, folding = _fold_size(size)
    rounds = count_rounds(power) + folding
    return link_cost.estimate_seconds(
        rounds, rounds * nbytes, (count_rounds(power) + folding / 2) * nbytes
    )


def estimate_halving_doubling(link_cost: LinkCost, size: int, nbytes: int) -> float:
    power, folding = _fold_size(size)
    share = nbytes * (power - 1) / power
    return link_cost.estimate_seconds(
        2 * count_rounds(power) + folding,
        2 * share + folding * nbytes,
        share + folding / 2 * nbytes,
    )


def estimate_ring(link_cost: LinkCost, size: int, nbytes: int) -> float:
    share = nbytes * (size - 1) / size
    return link_cost.estimate_seconds(2 * (size - 1), 2 * share, share)


def _fold_size(size: int) -> tuple[int, int]:
    """Return the largest power of two up to `size`, and the rounds that come in addition then."""
    power = 1 << size.bit_length() - 1
    return power, 0 if power == size else 2


# ---------------------------------------------------------------- broadcast of `nbytes`


def estimate_tree(link_cost: LinkCost, size: int, nbytes: int) -> float:
    return link_cost.estimate_seconds(count_rounds(size), count_rounds(size) * nbytes)


def estimate_van_de_geijn(link_cost: LinkCost, size: int, nbytes: int) -> float:
    share = nbytes * (size - 1) / size
    return link_cost.estimate_seconds(count_rounds(size) + size - 1, 2 * share)


# ---------------------------------------------------------------- all_gather to `nbytes`


def estimate_bruck(link_cost: LinkCost, size: int, nbytes: int) -> float:
    # What it copies besides takes as long as adding it up would.
    return link_cost.estimate_seconds(count_rounds(size), nbytes * (size - 1) / size, nbytes)


def estimate_ring_all_gather(link_cost: LinkCost, size: int, nbytes: int) -> float:
    return link_cost.estimate_seconds(size - 1, nbytes * (size - 1) / size)
