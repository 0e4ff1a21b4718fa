"""The benchmarked systems from a rank's view: allhands, Gloo, MPI, plain TCP.

Every one is at its best setting: calls and tensors are made ready before the clock runs, MPI works
in place where it can and without locks where it can. A rank imports the module of its own system
alone (`join`), under that system's Python.
"""

from allhands.bench.systems.names import (
    ALLHANDS,
    AWAITED,
    ENCRYPTED,
    MPI,
    PEERS,
    TCP,
    TORCH,
    UNRECORDED,
)

__all__ = ["ALLHANDS", "AWAITED", "ENCRYPTED", "MPI", "PEERS", "TCP", "TORCH", "UNRECORDED"]
