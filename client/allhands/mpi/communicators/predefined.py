"""The communicators that exist from the beginning."""

from allhands.mpi.communicators.comm import Comm
from allhands.mpi.communicators.intracomm import Intracomm
from allhands.mpi.runtime import runtime

WORLD_CONTEXT = 0
SELF_CONTEXT = 2

COMM_NULL = Comm()._name_constant("COMM_NULL")
"""The null communicator."""
COMM_SELF = Intracomm()._name_constant("COMM_SELF")
"""This process alone."""
COMM_WORLD = Intracomm()._name_constant("COMM_WORLD")
"""All ranks."""


def open_predefined() -> None:
    """Give the predefined communicators their ranks, once the world is there."""
    engine = runtime.engine
    COMM_WORLD._set(WORLD_CONTEXT, range(engine.size))
    COMM_WORLD._name = "MPI_COMM_WORLD"
    runtime.world = COMM_WORLD
    COMM_SELF._set(SELF_CONTEXT, (engine.rank,))
    COMM_SELF._name = "MPI_COMM_SELF"
