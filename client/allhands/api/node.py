"""Facts about this process that need no world."""

import os

_LOCAL_RANK_VARIABLES = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "SLURM_LOCALID",
)


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """Return this process's number on this host, as its launcher sets it.

    That is LOCAL_RANK, else what mpirun or srun have set; without any of them `fallback_rank`.

    Raises:
        RuntimeError: there is none of them, and no `fallback_rank` was given.
        ValueError: the variable holds no number.
    """
    for name in _LOCAL_RANK_VARIABLES:
        if (text := os.environ.get(name)) is not None:
            try:
                return int(text)
            except ValueError:
                raise ValueError(f"{name} must be a whole number, not {text!r}") from None
    if fallback_rank is None:
        raise RuntimeError(
            "LOCAL_RANK is not in the environment: start this program with `allhands run` or "
            "torchrun, or pass fallback_rank for a program that also runs alone"
        )
    return int(fallback_rank)
