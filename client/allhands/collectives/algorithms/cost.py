"""What algorithms cost on a wire of known latency and bandwidth. Pure.

The model of Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in
MPICH", Int. J. High Perform. Comput. Appl. 19 (2005): every round costs the latency, every byte
that a rank sends or combines its time; ranks send and receive at once.
"""

from dataclasses import dataclass

COMBINED_PER_SECOND = 12e9
"""Bytes that one core adds up; it does 11 to 31 GB/s, the less the larger the arrays."""


@dataclass(frozen=True, slots=True)
class Wire:
    """What messages between the ranks of a world cost: the same numbers on all of them."""

    latency: float
    """Seconds that a short message takes."""
    bandwidth: float
    """Bytes per second each way, while as many come the other way."""

    def __str__(self) -> str:
        return f"{self.latency * 1e6:.0f} us and streams run at {self.bandwidth / 1e6:.0f} MB/s"

    def seconds(self, rounds: float, sent: float, combined: float = 0.0) -> float:
        """Return what so many rounds take in which a rank sends and combines so many bytes."""
        return rounds * self.latency + sent / self.bandwidth + combined / COMBINED_PER_SECOND


def rounds_of(size: int) -> int:
    """Return how often `size` can be halved, rounded up."""
    return (size - 1).bit_length()


# ---------------------------------------------------------------- all_reduce of `nbytes`


def doubling(wire: Wire, size: int, nbytes: int) -> float:
    power, folding = _folded(size)
    rounds = rounds_of(power) + folding
    return wire.seconds(rounds, rounds * nbytes, (rounds_of(power) + folding / 2) * nbytes)


def halving_doubling(wire: Wire, size: int, nbytes: int) -> float:
    power, folding = _folded(size)
    share = nbytes * (power - 1) / power
    return wire.seconds(
        2 * rounds_of(power) + folding,
        2 * share + folding * nbytes,
        share + folding / 2 * nbytes,
    )


def ring(wire: Wire, size: int, nbytes: int) -> float:
    share = nbytes * (size - 1) / size
    return wire.seconds(2 * (size - 1), 2 * share, share)


def _folded(size: int) -> tuple[int, int]:
    """Return the largest power of two up to `size`, and the rounds that come in addition then."""
    power = 1 << size.bit_length() - 1
    return power, 0 if power == size else 2


# ---------------------------------------------------------------- broadcast of `nbytes`


def tree(wire: Wire, size: int, nbytes: int) -> float:
    return wire.seconds(rounds_of(size), rounds_of(size) * nbytes)


def scattered(wire: Wire, size: int, nbytes: int) -> float:
    share = nbytes * (size - 1) / size
    return wire.seconds(rounds_of(size) + size - 1, 2 * share)


# ---------------------------------------------------------------- all_gather to `nbytes`


def bruck(wire: Wire, size: int, nbytes: int) -> float:
    # What it copies besides takes as long as adding it up would.
    return wire.seconds(rounds_of(size), nbytes * (size - 1) / size, nbytes)


def circle(wire: Wire, size: int, nbytes: int) -> float:
    return wire.seconds(size - 1, nbytes * (size - 1) / size)
